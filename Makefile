# Two commands matter: `make serve` and `make test`. Both set up .venv first and are quick the second time.

PYTHON ?= python3
# The torch to install, before anything else. Any pip arguments will do, so that another build can be chosen:
#   make setup TORCH='torch==2.13.0+cpu --index-url URL-OF-THE-BUILD'
# Name the local part (+cpu, +cu130) to switch the build in a .venv that has one already.
TORCH ?= torch==2.13.0
# What torch pulls is pinned too, except from another index, which may lack those versions; the next install corrects it.
TORCH_PINS := $(if $(findstring -url,$(TORCH)),,-c constraints.txt)
# Passed on to `echo-sched serve`
ARGS ?=
PYTEST_ARGS ?= -n auto --maxprocesses 4 --dist loadfile

VENV := .venv
BIN := $(VENV)/bin
STAMP := $(VENV)/.stamp

.DEFAULT_GOAL := help
.DELETE_ON_ERROR:
.PHONY: help setup serve test test-exact lint format types imports pytest reproduce clean FORCE

help:  ## list the targets
	@sed -n 's/^\([a-z-]*\):.*## \(.*\)/  make \1\t\2/p' $(MAKEFILE_LIST) | expand -t 18

setup: $(STAMP)  ## make .venv and install everything, versions pinned in constraints.txt

serve: $(STAMP)  ## set up, fetch the default model, serve on 127.0.0.1:8000; flags in ARGS="--k-max 64"
	$(if $(findstring --model,$(ARGS)),,$(BIN)/echo-sched fetch)
	$(BIN)/echo-sched serve $(ARGS)

test: $(STAMP)  ## set up, then lint, types, import contracts and tests: what CI runs
	@$(MAKE) --no-print-directory lint
	@$(MAKE) --no-print-directory types
	@$(MAKE) --no-print-directory imports
	@$(MAKE) --no-print-directory pytest

test-exact: $(STAMP)  ## the proof of exactness at full size: thousands of requests, some twenty minutes
	$(BIN)/pytest tests/proof --long $(PYTEST_ARGS)

lint: $(STAMP)  ## ruff: rules and format
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .

format: $(STAMP)  ## let ruff repair what it can
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

types: $(STAMP)  ## mypy, strict
	$(BIN)/mypy

imports: $(STAMP)  ## import-linter: the arrows between the packages
	$(BIN)/lint-imports

pytest: $(STAMP)  ## the tests alone; choose some with PYTEST_ARGS="-k tree"
	$(BIN)/pytest $(PYTEST_ARGS)

reproduce: $(STAMP)  ## docs/results.md and its figures again, from benchmarks/results, without a model
	$(BIN)/python -m benchmarks.reproduce

clean:  ## remove .venv and everything built (the model cache stays)
	rm -rf $(VENV) build dist *.egg-info .mypy_cache .ruff_cache .pytest_cache .import_linter_cache .hypothesis

$(STAMP): pyproject.toml constraints.txt $(VENV)/.torch
	@echo "==> installing $(TORCH)"
	$(BIN)/python -m pip install $(TORCH_PINS) $(TORCH)
	@echo "==> installing everything else"
	$(BIN)/python -m pip install -c constraints.txt setuptools
	$(BIN)/python -m pip install -c constraints.txt --no-build-isolation -e '.[dev]'
	@touch $@

# Remembers TORCH, and changes only when it does, so that choosing another build installs it.
$(VENV)/.torch: FORCE | $(BIN)/python
	@echo "$(TORCH)" | cmp -s - $@ || echo "$(TORCH)" > $@

$(BIN)/python:
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11) and \
		"echo-sched needs Python 3.11 or newer, for example: make setup PYTHON=python3.11")'
	@echo "==> making $(VENV)"
	$(PYTHON) -m venv $(VENV)

FORCE:
