# Two commands do everything on a fresh machine: `make demo` and `make test`.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
READY := $(VENV)/.ready
DEV := $(VENV)/.ready-dev
PEERS := $(VENV)/.ready-peers
# Where MNIST and the like are, for the tests, benchmarks and experiments that use them.
export DITHER_DATA ?= $(firstword $(wildcard ../shared/data) data)
# Where the paper's tables are as CSV, for the report that sets them beside ours.
export DITHER_PAPER ?= $(wildcard ../shared/paper)
# Where acceptance cases of loops and models are, for the test that runs them.
export DITHER_CASES ?= $(wildcard ../shared/cases)
# Two workers on two cores: more threads would only wait for each other.
ONE_THREAD := OMP_NUM_THREADS=1 OPENBLAS_NUM_THREADS=1
PIP := $(BIN)/python -m pip install --disable-pip-version-check -c constraints.txt
# One line per package, so that a long installation is seen to go on, piped or not.
SHOW := awk '/^(Collecting|Processing) / {sub(/.*\//, "", $$2); sub(/[-><=~!;\[].*/, "", $$2); \
	printf "  %3d  %s\n", ++n, $$2; fflush()} \
	/^Installing collected/ {print "  unpacking; this takes the longest"; fflush()}'
SHELL := /bin/bash
.SHELLFLAGS := -o pipefail -c

.DEFAULT_GOAL := help
.PHONY: help setup demo test browser coverage lint docs package bench experiments recipe reproduce evidence clean

help: ## list the targets
	@awk -F ':.*## ' '/^[a-z]+:.*## / {printf "  make %-12s %s\n", $$1, $$2}' $(MAKEFILE_LIST)

setup: $(DEV) ## make .venv with dither and the development tools, pinned by constraints.txt

demo: $(READY) ## what privacy costs: five ways to train on digits, a table and a picture, in a minute
	$(BIN)/dither demo --plot demo.png

test: lint browser ## lint, types, import contracts, tests, doctests
	$(ONE_THREAD) $(BIN)/pytest -n 2 --durations=10

browser: # what the tests of pages look at them with
	@command -v chromium >/dev/null || { echo "installing chromium"; apt-get update -qq && \
		DEBIAN_FRONTEND=noninteractive apt-get install -y -qq --no-install-recommends \
		chromium fonts-dejavu-core >/dev/null; } || \
		echo "NO CHROMIUM, and it cannot be installed here: the tests of pages in a browser will be SKIPPED" >&2

coverage: $(DEV) ## the tests again, with a report of the lines and branches that they reach
	$(ONE_THREAD) $(BIN)/pytest -n 2 --cov --cov-report=term

lint: $(DEV) ## ruff, mypy strict, import contracts
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports

docs: $(DEV) ## the documentation site, in site/
	$(BIN)/python docs/build.py site

package: $(DEV) ## a wheel and an sdist, in dist/
	$(BIN)/python -m build --no-isolation

bench: $(PEERS) ## benchmarks; results go to benchmarks/results/
	$(BIN)/python -m benchmarks.schedules
	$(BIN)/python -m benchmarks.accounting
	$(BIN)/python -m benchmarks.planning
	$(BIN)/python -m benchmarks.shaping
	$(BIN)/python -m benchmarks.clipping
	$(BIN)/python -m benchmarks.models
	$(BIN)/python -m benchmarks.large_model_step
	$(BIN)/python -m benchmarks.users
	$(BIN)/python -m benchmarks.training
	$(BIN)/python -m benchmarks.noise
	$(BIN)/python -m benchmarks.ring
	$(BIN)/python -m benchmarks.ledger
	$(BIN)/python -m benchmarks.coverage
	$(BIN)/python -m benchmarks.audit
	$(BIN)/python -m benchmarks.tables --again
	$(BIN)/python -m benchmarks.distributed
	$(BIN)/python -m benchmarks.transformers
	$(BIN)/python -m benchmarks.growth
	$(BIN)/python -m benchmarks.clipping_report

experiments: $(DEV) ## training on MNIST and Fashion-MNIST; results go to experiments/records/
	$(BIN)/python -m experiments.noise_shapes
	$(BIN)/python -m experiments.adaptive_leak
	$(BIN)/python -m experiments.estimator_defaults
	$(BIN)/python -m experiments.correlated

recipe: $(DEV) ## the recipe against a grid on held-out tasks, an hour of two cores; it resumes
	$(ONE_THREAD) $(BIN)/python -m experiments.recipe --tasks heldout --jobs 2

reproduce: $(DEV) ## the paper's tables and figures, about three hours of two cores; it resumes
	$(BIN)/python -m experiments.reproduction all --profile small --resume
	$(BIN)/python -m experiments.reproduction report --profile small

evidence: $(DEV) browser ## the long checks: many more random cases than `make test` draws
	$(ONE_THREAD) HYPOTHESIS_PROFILE=evidence $(BIN)/pytest -n 2 -m "evidence or not evidence"

clean: ## remove .venv, caches and what the demo wrote
	rm -rf $(VENV) build dist site demo.png .coverage .hypothesis .mypy_cache .pytest_cache .ruff_cache .import_linter_cache
	find src tests benchmarks experiments -name __pycache__ -type d -prune -exec rm -rf {} +

$(BIN)/python:
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || \
		{ echo "dither needs Python 3.11 or newer; call make PYTHON=/path/to/python3.11" >&2; exit 1; }
	@echo "making $(VENV)"
	@$(PYTHON) -m venv $(VENV) || { rm -rf $(VENV); apt-get install -y python3-venv && $(PYTHON) -m venv $(VENV); }

$(READY): pyproject.toml constraints.txt | $(BIN)/python
	@echo "installing dither in $(VENV) (about a minute the first time)"
	@$(PIP) hatchling hatch-fancy-pypi-readme editables | $(SHOW)
	@$(PIP) --no-build-isolation --editable . | $(SHOW)
	@touch $@

$(DEV): $(READY)
	@echo "installing the development tools in $(VENV) (about a minute the first time)"
	@$(PIP) --no-build-isolation --editable '.[dev]' | $(SHOW)
	@touch $@

$(PEERS): $(DEV)
	@echo "installing the libraries of the benchmarks in $(VENV)"
	@$(PIP) --no-build-isolation --editable '.[dev,peers]' | $(SHOW)
	@touch $@
