# Everything sets up what it needs by itself, in .venv, from nothing but Debian, Python >= 3.11 and make.
SHELL := /bin/bash
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
STAMP := $(VENV)/.set-up
PORT ?= 8082
DATA ?= ./mq-data

.DEFAULT_GOAL := help
.PHONY: help setup demo run test check format lint types imports bench load torture clean

help: ## What you can do here
	@grep -hE '^[a-z-]+:.*## ' $(MAKEFILE_LIST) | awk -F ':.*## ' '{printf "  make %-10s %s\n", $$1, $$2}'

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

torture: $(STAMP) ## A million simulated crash states of the store (about ten minutes)
	@MQ_TORTURE_STATES=1000000 $(BIN)/python -m pytest tests/properties -q

clean: ## Remove what these targets made
	@rm -rf $(VENV) .mypy_cache .ruff_cache .pytest_cache .hypothesis
