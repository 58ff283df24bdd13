# Every target makes .venv when there is none and brings it up to date when pyproject.toml or constraints.txt change.

PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
PIP := $(BIN)/python -m pip
PEERS := benchmarks/peers
TEST_ARGS ?= -n 2 --dist worksteal
export PIP_DISABLE_PIP_VERSION_CHECK := 1

.DEFAULT_GOAL := help
.PHONY: help demo test slow mutation lint format types docs docs-check release check bench peers clean

help: ## list the targets
	@grep -E '^[a-z-]+:.*## ' $(MAKEFILE_LIST) | sed -E 's/:.*## /\t/' | expand -t 14

demo: $(VENV)/.package ## write a small dataset with images and sounds, read it back, and train a model on it
	$(BIN)/python examples/demo.py

test: $(VENV)/.test-extra ## all tests but the slow ones
	$(BIN)/python -m pytest $(TEST_ARGS)

slow: $(VENV)/.test-extra ## the slow tests; only files that have some are collected
	$(BIN)/python -m pytest -m slow $(TEST_ARGS) $$(grep -rl --include='test_*.py' slow tests)

mutation: $(VENV)/.test-extra ## change the code in small ways and see which changes no test notices; MODULES="daskprep/..." for some
	$(BIN)/python tests/mutation/run.py $(MODULES)

lint: $(VENV)/.dev-extra ## style, formatting, layers, spelling
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/lint-imports
	$(BIN)/codespell

format: $(VENV)/.dev-extra ## format, and fix what can be fixed
	$(BIN)/ruff format .
	$(BIN)/ruff check --fix .

types: $(VENV)/.dev-extra ## annotations
	$(BIN)/mypy

docs: $(VENV)/.docs-extra ## build/docs/index.html: the documentation and the reference; warnings are errors
	rm -rf build/docs docs/reference docs/notebooks
	$(BIN)/python -m sphinx -q -W --keep-going -b html -d build/doctrees -E docs build/docs
	DASKPREP_SITE=build/docs $(BIN)/python -m pytest -q tests/repository/site

docs-check: $(VENV)/.test-extra ## run every Python block of the documentation, and the examples
	$(BIN)/python -m pytest tests/repository/test_docs.py

release: $(VENV)/.dev-extra ## build the wheel and the sdist, and try both in fresh environments
	$(BIN)/python tests/release/run.py

check: test slow lint types docs ## all that CI runs

bench: $(VENV)/.test-extra ## start-up times; with DATA and ROWS also the whole job against polars
	$(BIN)/python -m benchmarks.own.startup
ifdef DATA
	$(BIN)/python -m benchmarks.peers.prep --data $(DATA) --rows $(ROWS)
endif

peers: $(PEERS)/.venv/.installed ## the alternatives that benchmarks compare with, in an environment of their own

clean: ## remove .venv, builds and caches
	rm -rf $(VENV) build dist docs/reference docs/notebooks *.egg-info .hypothesis .import_linter_cache .mypy_cache .pytest_cache .ruff_cache
	find . -name __pycache__ -type d -prune -exec rm -rf {} +

$(BIN)/python:
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || \
		{ echo "daskprep needs Python 3.11 or newer; name one with: make PYTHON=python3.11"; exit 1; }
	$(PYTHON) -m venv $(VENV)
	$(PIP) install --quiet --upgrade pip

# torch comes first and pinned: resolved together with the rest, a build with gigabytes of CUDA may be chosen.
$(VENV)/.package: pyproject.toml constraints.txt | $(BIN)/python
	$(PIP) install --quiet -c constraints.txt torch
	$(PIP) install --quiet -c constraints.txt -e .
	@touch $@

$(VENV)/.test-extra: $(VENV)/.package
	$(PIP) install --quiet -c constraints.txt -e ".[test]"
	@touch $@

$(VENV)/.dev-extra: $(VENV)/.test-extra
	$(PIP) install --quiet -c constraints.txt -e ".[dev]"
	@touch $@

$(VENV)/.docs-extra: $(VENV)/.test-extra
	$(PIP) install --quiet -c constraints.txt -e ".[docs]"
	@touch $@

$(PEERS)/.venv/.installed: $(PEERS)/requirements.txt
	$(PYTHON) -m venv $(PEERS)/.venv
	$(PEERS)/.venv/bin/python -m pip install --quiet -r $<
	@touch $@
