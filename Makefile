# Everything sets up what it needs by itself, in .venv, from nothing but Debian, Python >= 3.11 and make.
SHELL := /bin/bash
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
STAMP := $(VENV)/.set-up
PORT ?= 8082
DATA ?= ./mq-data

.DEFAULT_GOAL := help
.PHONY: help setup demo demo-cluster run test test-matrix test-long mutants check format lint types imports routes clients configuration dashboard published fuzz-api bench bench-store bench-queues bench-timer bench-groups bench-kafka bench-kafka-broker bench-push bench-peers load load-ui bench-growth torture torture-kill torture-disk torture-timer torture-groups clean torture-spark bench-spark test-js build-js shots bench-js bench-python attack

help: ## What you can do here
	@grep -hE '^[a-z-]+:.*## ' $(MAKEFILE_LIST) | awk -F ':.*## ' '{printf "  make %-14s %s\n", $$1, $$2}'

setup: $(STAMP) ## Install everything into .venv (the other targets do this by themselves)

$(STAMP): pyproject.toml clients/python/pyproject.toml .ci/setup
	@PYTHON="$(PYTHON)" VENV="$(VENV)" .ci/setup
	@touch $(STAMP)

demo: $(STAMP) ## The whole way on real data: HTTP in, WebSocket out, delayed records, a Spark job; about a minute; KAFKA=1: by way of a real Kafka
	@$(BIN)/python -m loadtest.demo $(if $(KAFKA),--kafka)

demo-cluster: $(STAMP) ## The same on three nodes with etcd, while partitions move and a node is killed; two minutes
	@$(BIN)/python -m loadtest.demo_cluster

run: $(STAMP) ## A server on this machine: make run PORT=8082 DATA=./mq-data
	@$(BIN)/mq serve --data "$(DATA)" --port "$(PORT)"

# A test waits for more than half of its time: four more at a time than there are cores.
JOBS ?= $(shell echo $$(( $$(nproc) + 4 )))
PYTEST = $(BIN)/python -m pytest
SIDE_BY_SIDE = $(if $(filter-out 1,$(JOBS)),-n $(JOBS) --dist loadfile --no-loadscope-reorder)

test: $(STAMP) ## What every push must pass, several files at a time; JOBS=1 runs them one after the other
	@$(PYTEST) $(SIDE_BY_SIDE)

test-matrix: $(STAMP) ## Foreign clients, pyspark 4.0 and 4.1, a Spark cluster, all of the JavaScript client and the console in a browser, every attack in small numbers, the longest turns, whole runs of benchmarks
	@$(PYTEST) $(SIDE_BY_SIDE) -m matrix

test-long: $(STAMP) torture attack ## A million crash states; every attack; long Spark, Locust, API fuzzing in all roles; every mutant: hours
	@$(PYTEST) $(SIDE_BY_SIDE) -m long

mutants: $(STAMP) ## Deliberate bugs in the store, each to be killed by its test; says killed of total; four minutes on two cores
	@$(PYTEST) $(if $(filter-out 1,$(JOBS)),-n $(JOBS)) -m long tests/crash/test_mutants.py

test-js: $(STAMP) ## The JavaScript client alone: types, size, units, Node and Chromium against real servers
	@$(PYTEST) -q -m '' tests/e2e/test_js.py

build-js: ## The JavaScript client's bundle, the copy of it that the gateway serves, its reference; the web console that the gateway serves
	@cd clients/js && npm ci --silent && npm run --silent build && npm run --silent docs
	@cd clients/console && npm ci --silent && npm run --silent build

shots: $(STAMP) ## Every page of the console in both themes, at a fixed clock and seed: docs/console/*.png
	@cd clients/js && npm ci --silent
	@cd clients/console && npm ci --silent && MQ_PYTHON="$(abspath $(BIN))/python" npm run --silent shots

bench-js: $(STAMP) ## The JavaScript client alone and with a server; result in docs/benchmarks/
	@cd clients/js && npm ci --silent && npm run --silent build -- --dist-only && node bench/bench.mjs --json ../../docs/benchmarks/js-client.json

bench-python: $(STAMP) ## The Python client beside aiohttp by hand, the JavaScript client, nats-py, redis-py; result in docs/benchmarks/
	@.ci/setup-peers
	@$(BIN)/python -m pip install -q --editable '.[peers]'
	@cd clients/js && npm ci --silent && npm run --silent build -- --dist-only
	@$(BIN)/python -m loadtest.bench.python_client

check: format lint types imports test ## Format, lint, strict types, import contracts, tests: what must pass before a push

format: $(STAMP)
	@$(BIN)/ruff format --check .

lint: $(STAMP)
	@$(BIN)/ruff check .

types: $(STAMP)
	@$(BIN)/mypy

imports: $(STAMP)
	@$(BIN)/lint-imports --no-cache

clients: $(STAMP) ## docs/clients.md from the list of behaviours and the tests that show them
	@$(BIN)/python -m tests.clients.behaviours > docs/clients.md

routes: $(STAMP) ## docs/routes.md from the route table
	@$(BIN)/python -m gateway.main.routes > docs/routes.md

configuration: $(STAMP) ## docs/configuration.md from the settings
	@$(BIN)/python -m gateway.settings.page > docs/configuration.md

dashboard: $(STAMP) ## docs/deploy/grafana.json from the metrics of a server
	@$(BIN)/python -m gateway.main.dashboard > docs/deploy/grafana.json

published: $(STAMP) ## Every name that users see: settings, metrics, codes, help, API documents; compare two trees with it
	@$(BIN)/python -m tests.published

fuzz-api: $(STAMP) ## schemathesis with all its checks against a real server: make fuzz-api MINUTES=5
	@MQ_FUZZ_MINUTES=$(or $(MINUTES),5) $(PYTEST) -s -q -m '' tests/e2e/test_schemathesis.py

attack: $(STAMP) ## Every attack of docs/security.md on a server of its own, a quarter of an hour; ONLY='idle-300; bombs' SHORT=1
	@$(BIN)/python -m loadtest.attack $(if $(ONLY),--only "$(ONLY)") $(if $(SHORT),--short)

bench: $(STAMP) ## Our speed beside a bare HTTP server and a bare disk loop, in one run; results in docs/benchmarks/
	@$(BIN)/python -m loadtest.bench

LOAD = $(BIN)/python -m loadtest.load $(if $(PROFILE),--profile $(PROFILE)) $(if $(USERS),--users $(USERS)) $(if $(DURATION),--duration $(DURATION)) $(if $(URL),--url $(URL)) $(if $(WORKERS),--workers $(WORKERS))

load: $(STAMP) ## Locust: PROFILE=mixed|send|consume|delayed|ramp|spike|soak USERS=20 DURATION=30s WORKERS=0 URL=(its own server)
	@$(LOAD)

load-ui: $(STAMP) ## The same with Locust's page on port 8089
	@$(LOAD) --ui

bench-growth: $(STAMP) ## How cost grows over 1x, 10x, 100x of the size: ONLY=push RESUME=1 MINUTES=5; ten minutes in full
	@$(BIN)/python -m loadtest.growth $(if $(ONLY),--only "$(ONLY)") $(if $(RESUME),--resume) $(if $(MINUTES),--minutes $(MINUTES)) $(if $(QUICK),--quick)

bench-store: $(STAMP) ## The store alone, beside its limits and goals: ONLY=append measures a part again
	@$(BIN)/python -m loadtest.bench.store $(if $(ONLY),--only "$(ONLY)")

bench-peers: $(STAMP) ## Beside Kafka, RocketMQ, NATS, RabbitMQ, Redis, nsqd, beanstalkd; QUICK=1: once over, not into docs: ROUNDS=5 PEERS='mq; kafka' PARTS=workloads RESUME=1 MINUTES=18
	@.ci/setup-peers
	@$(BIN)/python -m pip install -q --editable '.[peers]'
	@$(BIN)/python -m loadtest.peers $(if $(ROUNDS),--rounds $(ROUNDS)) $(if $(PEERS),--peers "$(PEERS)") $(if $(PARTS),--parts "$(PARTS)") $(if $(QUICK),--quick) $(if $(RESUME),--resume) $(if $(MINUTES),--minutes $(MINUTES))

bench-push: $(STAMP) ## How fast sockets are fed, beside NATS where it can be had: ONLY=subscriber|fan-out|latency|idle
	@.ci/setup-peers
	@$(BIN)/python -m pip install -q --editable '.[peers]'
	@$(BIN)/python -m loadtest.bench.push $(if $(ONLY),--only "$(ONLY)")

bench-queues: $(STAMP) ## Light queues by the million: rows, reads, memory, recovery, 15,000 sockets; beside Redis Streams and NATS JetStream: ONLY=inboxes SCALE=0.01 ROUNDS=1
	@.ci/setup-peers
	@$(BIN)/python -m pip install -q --editable '.[peers]'
	@$(BIN)/python -m loadtest.bench.queues $(if $(ONLY),--only "$(ONLY)") $(if $(SCALE),--scale $(SCALE)) $(if $(ROUNDS),--rounds $(ROUNDS))

bench-timer: $(STAMP) ## The timer: in one process; through a server, beside Redis and beanstalkd: ONLY=accept
	@.ci/setup-peers
	@$(BIN)/python -m loadtest.bench.timer $(if $(ONLY),--only "$(ONLY)")

bench-groups: $(STAMP) ## Consumer groups: queue mode by itself, over HTTP and WebSocket; rebalances
	@$(BIN)/python -m loadtest.bench.groups

bench-kafka: $(STAMP) ## Kafka's own clients (C, Java, Python) with mq and with Apache Kafka: ONLY=produce SCALE=0.1 ROUNDS=5 MINUTES=18
	@.ci/setup-peers
	@$(BIN)/python -m pip install -q --editable '.[peers]'
	@$(BIN)/python -m loadtest.bench.kafka $(if $(ONLY),--only "$(ONLY)") $(if $(SCALE),--scale $(SCALE)) $(if $(ROUNDS),--rounds $(ROUNDS)) $(if $(MINUTES),--minutes $(MINUTES))

bench-kafka-broker: $(STAMP) ## Partitions in Kafka beside native clients on the same Kafka: ONLY=in|out|latency SCALE=0.01 ROUNDS=1 MINUTES=9
	@.ci/setup-peers
	@$(BIN)/python -m pip install -q --editable '.[peers]'
	@$(BIN)/python -m loadtest.bench.kafka_broker $(if $(ONLY),--only $(ONLY)) $(if $(SCALE),--scale $(SCALE)) $(if $(ROUNDS),--rounds $(ROUNDS)) $(if $(MINUTES),--minutes $(MINUTES))

torture: $(STAMP) ## A million simulated crash states of the store (half an hour on two cores); SEED=<n> repeats
	@$(BIN)/python -m tests.properties.torture --states $(or $(STATES),1000000) $(if $(SEED),--seed $(SEED))

torture-kill: $(STAMP) ## 500 kill -9 cycles of a real server under load
	@MQ_KILL_CYCLES=500 $(PYTEST) -s -q tests/e2e/test_kill9.py

torture-disk: $(STAMP) mutants ## Power cuts, failing fsyncs and full disks on real file systems (root), and every mutant killed
	@MQ_TORTURE_CYCLES=100 MQ_TORTURE_FLIPS=20000 $(PYTEST) -q tests/crash

torture-groups: $(STAMP) ## Members killed and stopped for minutes while the server is killed with -9: KILLS=60 MEMBERS=50
	@MQ_GROUPS_KILLS=$(or $(KILLS),60) MQ_GROUPS_MEMBERS=$(or $(MEMBERS),50) $(PYTEST) -s -q tests/e2e/test_groups.py
	@MQ_GROUP_RUNS=$(or $(RUNS),3000) $(PYTEST) -q tests/gateway/groups/coordinator/test_crash.py

torture-timer: $(STAMP) ## kill -9 with a million delayed records pending
	@MQ_TIMER_PENDING=1000000 $(PYTEST) -s -q tests/e2e/test_timer_kill9.py
	@MQ_TIMER_RUNS=$(or $(RUNS),3000) $(PYTEST) -q tests/timer/test_crash.py

torture-spark: $(STAMP) ## Killed Spark drivers, a cluster of two workers without the package, pyspark 4.0 and 4.1, a million reminders; minutes
	@$(PYTEST) -s -q -m 'matrix or long' tests/e2e/test_spark_crash.py tests/e2e/test_spark_cluster.py \
		tests/e2e/test_spark_versions.py tests/spark/test_examples.py

bench-spark: $(STAMP) ## The Spark connector beside memory, Parquet and, where Maven has it, Kafka: ONLY=reads|streams|writes
	@.ci/setup-peers
	@$(BIN)/python -m pip install -q --editable '.[peers]'
	@$(BIN)/python -m loadtest.bench.spark $(if $(ONLY),--only "$(ONLY)")

clean: ## Remove what these targets made
	@rm -rf clients/js/node_modules clients/console/node_modules clients/js/build clients/js/dist $(VENV) .mypy_cache .ruff_cache .pytest_cache .hypothesis
