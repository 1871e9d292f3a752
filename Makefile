# `make help` lists what there is. Everything runs in .venv, which `make setup` makes; the other targets call it first.
SHELL := /bin/bash
.DEFAULT_GOAL := help
.PHONY: help setup up test unit tiny slowest check bench circle gpu accuracy release docs site

BIN := .venv/bin
# make setup ACCELERATOR=cpu|cuda decides by hand; it is remembered.
ACCELERATOR ?=
# Starting an engine is mostly waiting for one core: with three test processes a quarter of two cores was idle. 8 GB hold
# two of them, 16 GB three, 24 GB four.
TEST_PROCESSES ?= $(shell awk '/MemTotal/ {print ($$2 > 20000000) ? 4 : ($$2 > 14000000) ? 3 : 2}' /proc/meminfo)
# Further flags: make up ARGS='--port 8080', make test ARGS='-k gateway -x'
ARGS ?=

help: ## print this list
	@awk -F ':.*## ' '/^[a-z]+:.*## / { printf "make %-10s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)

setup: ## make .venv: CPU or CUDA builds by what the machine has (ACCELERATOR=cpu|cuda decides by hand)
	@scripts/setup.sh $(ACCELERATOR)

# exec: a signal reaches qserve itself, which drains, and no shell is left in between.
up: setup ## set up and serve the demo chat and reward models on http://127.0.0.1:8000 (more flags: ARGS='--port 8080')
	@exec $(BIN)/qserve up --model demo --reward demo $(ARGS)

# A test that waits for ever fails alone, and a broken machine is told after a few failures instead of an hour of them.
TEST_LIMITS := --timeout 300 --maxfail 25
# Hundreds of processes of qserve start: without its bytecode each would compile it anew.
unexport PYTHONDONTWRITEBYTECODE
# What mkdocs-material tells of its successor.
export NO_MKDOCS_2_WARNING := 1

# Beside each other: mypy alone would keep one core for a minute, and leave the others idle. The last line says which of
# the two failed: minutes of tests stand below what a check has said.
test: setup ## set up, check, and run every test that needs no GPU (one part: ARGS='tests/unit -k plan')
	@$(MAKE) --no-print-directory check & check=$$!; trap 'kill $$check' INT TERM; failed=; \
	$(MAKE) --no-print-directory run-tests || failed=' tests'; wait $$check || failed=" check$$failed"; \
	[ -z "$$failed" ] || { echo "make test: failed:$$failed" >&2; exit 1; }; echo "make test: checks and tests passed"

PYTEST := env -u MAKEFLAGS -u MAKELEVEL $(BIN)/pytest -m "not gpu" --dist loadfile --no-loadscope-reorder $(TEST_LIMITS)

.PHONY: run-tests
run-tests: setup
	@$(PYTEST) -n $(TEST_PROCESSES) $(ARGS)

# No setup: this is what is run after each change. Each process keeps a core busy here.
unit: ## the tests without an engine, on every core; needs the .venv that make setup makes
	@$(PYTEST) -n logical tests/unit $(ARGS)

tiny: ## the tests that start engines, services and browsers
	@$(PYTEST) -n $(TEST_PROCESSES) tests/tiny tests/browser $(ARGS)

slowest: ## the slowest test files by their last run, and what the tests start
	@$(BIN)/python -m tests.costs

check: setup ## lint, formatting, types, layers between packages, docs that quote the program, links between pages
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports
	$(BIN)/python scripts/docs.py --check
	$(BIN)/python scripts/gpu_readiness.py --check
	$(BIN)/mkdocs build

bench: setup ## what the gateway costs and what the worker yields, a few minutes; needs the machine to itself
	@$(BIN)/python bench/gateway_cost.py; gateway=$$?; $(BIN)/python bench/throughput.py && exit $$gateway

circle: setup ## the demo from plan to reward and back: SFT, reward model, GRPO against it hosted; fails below 10 points more
	@$(BIN)/python bench/training_circle.py $(ARGS)

# A machine with a card may have torch and no network: then this runs on its own Python, without make setup.
gpu: ## on an NVIDIA card: kernels, memory and speed beside the plan, services, in 9 minutes; ends well without one
	@$(if $(wildcard $(BIN)/python),$(BIN)/python,python3) bench/gpu.py $(ARGS)

accuracy: setup ## the planner's error per term, engine and release, against published figures
	@$(BIN)/python scripts/accuracy.py
	@$(BIN)/python scripts/accuracy_training.py
	@$(BIN)/python scripts/accuracy_speed.py

# A folder to copy: `pip install --find-links release qserve-llm-server qserve-llm-demo` on another machine.
release: setup ## build the three wheels into release/, with the versions that they are tested with
	@rm -rf release && $(BIN)/python -m pip wheel --quiet --no-deps --wheel-dir release . ./server ./demo
	@cp constraints.txt LICENSE release/ && ls -lh release

docs: setup ## write docs/cli.md, and what other pages quote from the program, anew
	@$(BIN)/python scripts/docs.py

site: setup ## build the documentation as a site into build/site; a link that leads nowhere fails
	@$(BIN)/mkdocs build
