# Both ways in, on a machine with nothing but make and Python 3.11: `make demo` and `make test`.
SHELL := /bin/bash
.SHELLFLAGS := -eu -o pipefail -c
.DEFAULT_GOAL := help

PYTHON ?= $(shell command -v python3.11 || command -v python3)
VENV := .venv
STAMP := $(VENV)/.installed
MODEL := .cache/smollm2
COMPOSITE := examples/composite-deepseek-v3.2.json
TARGETS := --device cuda:sm_90 --device rocm:gfx942 --device xpu:pvc --device cpu

.PHONY: help demo test lint lint-ruff lint-format lint-types lint-imports package clean

help:
	@echo "make demo      fetch SmolLM2-135M, look at this machine, plan for four platforms, answer a question"
	@echo "make test      run the tests (ARGS='tests/unit -k name' narrows them)"
	@echo "make lint      ruff, mypy and import-linter"
	@echo "make package   build the wheel and check it in an environment without torch"

$(STAMP): pyproject.toml constraints-cpu.txt
	@test -n "$(PYTHON)" || { echo "make: no python3.11 or python3 on PATH; install Python 3.11 or set PYTHON=" >&2; exit 2; }
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' \
	  || { echo "make: $(PYTHON) is $$($(PYTHON) -V); hal needs Python 3.11 or newer, set PYTHON=" >&2; exit 2; }
	@test -x $(VENV)/bin/pip || $(PYTHON) -c 'import ensurepip, venv' 2>/dev/null \
	  || { echo "make: $(PYTHON) cannot make virtual environments; on Debian: apt-get install python3-venv" >&2; exit 2; }
	@test -x $(VENV)/bin/pip || { rm -rf $(VENV); $(PYTHON) -m venv $(VENV); }
	$(VENV)/bin/pip install --quiet --disable-pip-version-check -c constraints-cpu.txt -e '.[test]'
	@touch $@

demo: $(STAMP)
	$(VENV)/bin/python examples/fetch_smollm2.py $(MODEL)
	$(VENV)/bin/hal doctor
	$(VENV)/bin/hal explain $(MODEL) $(TARGETS)
	$(VENV)/bin/hal explain $(COMPOSITE) $(TARGETS) --memory 80
	$(VENV)/bin/hal generate $(MODEL) "What is the capital of France?" --max-new-tokens 32 --stats

test: $(STAMP)
	$(VENV)/bin/python -m pytest $(ARGS)

lint: lint-ruff lint-format lint-types lint-imports

lint-ruff: $(STAMP)
	$(VENV)/bin/ruff check

lint-format: $(STAMP)
	$(VENV)/bin/ruff format --check

lint-types: $(STAMP)
	$(VENV)/bin/mypy

lint-imports: $(STAMP)
	$(VENV)/bin/lint-imports

package: $(STAMP)
	$(VENV)/bin/python tests/packaging/check_wheel.py

clean:
	rm -rf $(VENV) build dist *.egg-info .mypy_cache .ruff_cache .pytest_cache .import_linter_cache
