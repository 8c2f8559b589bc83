# Every target CI, a contributor or a newcomer needs. `make help` lists them.
SHELL := /bin/bash
PYTHON ?= python3
VENV ?= .venv
BIN := $(VENV)/bin
MEMBERS := proto formats kernels engine runtime worker services/gateway services/router services/prefill services/decode services/kvstore cli
# PyTorch for CPU only comes from an index of its own; name it here where pip does not find it by itself.
TORCH_INDEX ?=
STAMP := $(VENV)/.installed
DEV_STAMP := $(VENV)/.installed-dev
CLIENTS_VENV := .venv-clients
CLIENTS_STAMP := $(CLIENTS_VENV)/.installed
OPENAPI_VENV := .venv-openapi
OPENAPI_STAMP := $(OPENAPI_VENV)/.installed

.PHONY: help setup up test lint typecheck format bench proto proto-check docs docs-check check-gpu chaos soak every-gpu kernel-resources e2e clients openapi-test compose-test clean
.DEFAULT_GOAL := help

help: ## Show this list
	@grep -hE '^[a-z-]+:.*## ' $(MAKEFILE_LIST) | awk -F ':.*## ' '{printf "  %-14s %s\n", $$1, $$2}'

$(VENV)/bin/python:
	$(PYTHON) -m venv $(VENV)

$(STAMP): constraints.txt $(addsuffix /pyproject.toml,$(MEMBERS)) | $(VENV)/bin/python
	$(BIN)/pip install -q --disable-pip-version-check $(if $(TORCH_INDEX),--index-url $(TORCH_INDEX)) torch==2.13.0
	$(BIN)/pip install -q --disable-pip-version-check -c constraints.txt hatchling editables
	$(BIN)/pip install -q --disable-pip-version-check -c constraints.txt --no-build-isolation $(addprefix -e ./,$(MEMBERS:cli=cli[up]))
	$(BIN)/python -m pagoda_kernels.native
	@touch $@

$(DEV_STAMP): requirements-dev.txt $(STAMP)
	$(BIN)/pip install -q --disable-pip-version-check -c constraints.txt -r requirements-dev.txt
	@touch $@

setup: $(DEV_STAMP) ## Create .venv with everything, development tools included

up: $(STAMP) ## Start the whole system on this machine; Ctrl-C stops it
	@exec $(BIN)/pagoda up

test: export OMP_NUM_THREADS = 1
# Where a test has torch take a second thread, that one would spin on a core that others need.
test: export OMP_WAIT_POLICY = PASSIVE
test: export PYTHONDONTWRITEBYTECODE = # kept: else every process of every stack compiles Pagoda anew
# Three processes on two cores: tests of whole stacks wait for a third of their time.
test: $(DEV_STAMP) ## Run every test that needs no GPU and no Docker
	$(BIN)/python -m pytest -n 3 --dist loadfile --no-loadscope-reorder -m "not gpu and not compose and not alone" $(PYTEST_ARGS)
	$(if $(PYTEST_ARGS),,$(BIN)/python -m pytest -m alone $$(grep -rl --include='test_*.py' 'mark\.alone' tests))

lint: $(DEV_STAMP) proto-check docs-check ## Check style, imports, proto and generated documents
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/lint-imports
	$(BIN)/check-jsonschema --builtin-schema vendor.compose-spec compose.yaml
	$(BIN)/hadolint --failure-threshold error deploy/*.Dockerfile

typecheck: $(DEV_STAMP) ## Check types (mypy strict)
	$(BIN)/mypy

format: $(DEV_STAMP) ## Rewrite the sources in house style
	$(BIN)/ruff format .
	$(BIN)/ruff check --fix .
	cd proto && ../$(BIN)/buf format -w

proto: $(DEV_STAMP) ## Regenerate proto/gen from proto/pagoda
	rm -rf proto/gen/pagoda
	cd proto && PATH="$(abspath $(BIN)):$$PATH" ../$(BIN)/python -m grpc_tools.protoc -I. --python_out=gen --grpc_python_out=gen \
	  --mypy_out=gen --mypy_grpc_out=gen pagoda/rpc/v1/*.proto
	touch proto/gen/pagoda/rpc/py.typed

proto-check: $(DEV_STAMP) ## Fail if proto/gen is not what proto/pagoda generates
	cd proto && ../$(BIN)/buf lint && ../$(BIN)/buf format -d --exit-code
	@cp -r proto/gen proto/.gen-before && $(MAKE) -s proto && diff -r -x __pycache__ proto/.gen-before proto/gen; \
	  status=$$?; rm -rf proto/.gen-before; [ $$status = 0 ] || echo "proto/gen was stale: commit what 'make proto' wrote"; exit $$status

docs: $(DEV_STAMP) ## Rewrite docs/configuration.md and deploy/settings.env from the settings, and the rooms in ARCHITECTURE.md from the imports
	$(BIN)/python -m pagoda_cli.configuration_page --write docs/configuration.md
	$(BIN)/python -m pagoda_cli.configuration_page --write deploy/settings.env
	$(BIN)/python docs/rooms.py --write ARCHITECTURE.md

docs-check: $(DEV_STAMP) ## Fail if a generated document is stale, imports go in a circle, or a room is crowded
	$(BIN)/python -m pagoda_cli.configuration_page --check docs/configuration.md
	$(BIN)/python -m pagoda_cli.configuration_page --check deploy/settings.env
	$(BIN)/python docs/rooms.py --check ARCHITECTURE.md

bench: $(DEV_STAMP) ## Run the standard benchmarks into benchmarks/results/
	OMP_NUM_THREADS=1 $(BIN)/python benchmarks/serving/standard.py

check-gpu: ## On a GPU host: prove and measure kernels, engine and KV transfer, with the host's own torch and triton
	$(PYTHON) benchmarks/gpu/check_gpu.py $(CHECK_GPU_ARGS)

chaos: $(DEV_STAMP) ## Kill, pause and stop every process under load; CHAOS_ARGS="--cases r1,nats --faults 5" for less
	PYTHONPATH=tests OMP_NUM_THREADS=1 $(BIN)/python -m chaos $(CHAOS_ARGS)

soak: $(DEV_STAMP) ## Ten minutes of changeable clients: nothing may grow, leak or complain (SOAK_ARGS="--minutes 6")
	PYTHONPATH=tests OMP_NUM_THREADS=1 $(BIN)/python -m chaos.soak $(SOAK_ARGS)

every-gpu: $(DEV_STAMP) ## Compile every case of every kernel for every GPU, not the first for H100 alone as `make test` does
	PAGODA_COMPILE_FOR_EVERY_GPU=1 OMP_NUM_THREADS=1 $(BIN)/python -m pytest tests/kernels/compile

kernel-resources: $(DEV_STAMP) ## Record what every kernel compiles to: registers, spills, bytes per cycle
	PYTHONPATH=tests:kernels $(BIN)/python -m support.compile_scripts benchmarks/results/compile/resources.json

$(CLIENTS_STAMP): requirements-clients.txt tests/clients/node/package.json
	$(PYTHON) -m venv $(CLIENTS_VENV)
	$(CLIENTS_VENV)/bin/pip install -q --disable-pip-version-check -r requirements-clients.txt
	if command -v npm > /dev/null; then cd tests/clients/node && npm install --no-audit --no-fund --no-package-lock --loglevel=error; fi
	@touch $@

clients: $(DEV_STAMP) $(CLIENTS_STAMP) ## Run other people's clients (LangChain, LiteLLM, lm-eval, openai for Node ...) against the system, in .venv-clients
	PYTHONPATH=tests $(BIN)/python -m clients $(CLIENTS_VENV)/bin/python

$(OPENAPI_STAMP): requirements-openapi.txt
	$(PYTHON) -m venv $(OPENAPI_VENV)
	$(OPENAPI_VENV)/bin/pip install -q --disable-pip-version-check -r requirements-openapi.txt
	@touch $@

openapi-test: $(DEV_STAMP) $(OPENAPI_STAMP) ## Have schemathesis try all that /openapi.json describes, in .venv-openapi
	PYTHONPATH=tests OMP_NUM_THREADS=1 $(BIN)/python -m openapi $(OPENAPI_VENV)/bin/schemathesis

compose-test: $(DEV_STAMP) ## Bring compose.yaml up with Docker and stream through it
	$(BIN)/python -m pytest -m compose tests/compose $(PYTEST_ARGS)

clean: ## Remove .venv and run-time data
	rm -rf $(VENV) $(CLIENTS_VENV) $(OPENAPI_VENV) tests/clients/node/node_modules .pagoda
