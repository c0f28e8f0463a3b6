# Everything sets up what it needs by itself, in .venv, from nothing but Debian, Python >= 3.11 and make.
SHELL := /bin/bash
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
STAMP := $(VENV)/.set-up
PORT ?= 8082
DATA ?= ./mq-data

.DEFAULT_GOAL := help
.PHONY: help setup demo run test check format lint types imports bench bench-store bench-timer load torture torture-kill torture-disk torture-timer clean

help: ## What you can do here
	@grep -hE '^[a-z-]+:.*## ' $(MAKEFILE_LIST) | awk -F ':.*## ' '{printf "  make %-14s %s\n", $$1, $$2}'

setup: $(STAMP) ## Install everything into .venv (the other targets do this by themselves)

$(STAMP): pyproject.toml .ci/setup
	@PYTHON="$(PYTHON)" VENV="$(VENV)" .ci/setup
	@touch $(STAMP)

demo: $(STAMP) ## The whole way on real data: HTTP in, WebSocket out, delayed records, a Spark job; about a minute
	@$(BIN)/python -m loadtest.demo

run: $(STAMP) ## A server on this machine: make run PORT=8082 DATA=./mq-data
	@$(BIN)/mq serve --data "$(DATA)" --port "$(PORT)"

test: $(STAMP) ## All tests
	@$(BIN)/python -m pytest

check: format lint types imports test ## Format, lint, strict types, import contracts, tests: what must pass before a push

format: $(STAMP)
	@$(BIN)/ruff format --check .

lint: $(STAMP)
	@$(BIN)/ruff check .

types: $(STAMP)
	@$(BIN)/mypy

imports: $(STAMP)
	@$(BIN)/lint-imports --no-cache

bench: $(STAMP) ## Our speed beside the physical limits, measured in one run; results in docs/benchmarks/
	@$(BIN)/python -m loadtest.bench

load: $(STAMP) ## Locust against a running server: make load URL=http://127.0.0.1:8082
	@$(BIN)/locust -f loadtest/locustfile.py --headless -u 20 -r 10 -t 30s --host "$(or $(URL),http://127.0.0.1:8082)"

bench-store: $(STAMP) ## The store alone, beside its limits and goals
	@$(BIN)/python -m loadtest.bench.store

bench-timer: $(STAMP) ## The timer: accepting, firing, lateness, recovery; PENDING='1000000 10000000' for the large run
	@$(BIN)/python -m loadtest.bench.timer $(if $(PENDING),--many $(PENDING))

torture: $(STAMP) ## A million simulated crash states of the store (half an hour on two cores); SEED=<n> repeats
	@$(BIN)/python -m tests.properties.torture --states $(or $(STATES),1000000) $(if $(SEED),--seed $(SEED))

torture-kill: $(STAMP) ## 500 kill -9 cycles of a real server under load
	@MQ_KILL_CYCLES=500 $(BIN)/python -m pytest -s -q tests/e2e/test_kill9.py

torture-disk: $(STAMP) ## Power cuts, failing fsyncs and full disks on real file systems (root), and every mutant killed
	@MQ_TORTURE_CYCLES=100 MQ_TORTURE_MUTANTS=1 $(BIN)/python -m pytest -q tests/crash

torture-timer: $(STAMP) ## kill -9 with a million delayed records pending
	@MQ_TIMER_PENDING=1000000 $(BIN)/python -m pytest -s -q tests/e2e/test_timer_kill9.py

clean: ## Remove what these targets made
	@rm -rf $(VENV) .mypy_cache .ruff_cache .pytest_cache .hypothesis
