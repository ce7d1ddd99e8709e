# Both ways in, on a machine with nothing but make and Python 3.11: `make demo` and `make test`.
SHELL := /bin/bash
.SHELLFLAGS := -eu -o pipefail -c
.DEFAULT_GOAL := help

PYTHON ?= $(shell command -v python3.11 || command -v python3)
VENV := .venv
STAMP := $(VENV)/.installed
XPU_VENV := .venv-xpu
XPU_STAMP := $(XPU_VENV)/.installed
XPU_ICD := $(XPU_VENV)/etc/icd
IPEX_VENV := .venv-ipex
IPEX_STAMP := $(IPEX_VENV)/.installed
MODEL := .cache/smollm2
COMPOSITE := examples/composite-deepseek-v3.2.json
TARGETS := --device cuda:sm_90 --device rocm:gfx942 --device xpu:pvc --device cpu

.PHONY: help demo test test-triton test-xpu test-ipex test-page matrix check-matrix proofs compile lint lint-ruff lint-format lint-types lint-imports lint-workflows package clean

help:
	@echo "make demo      fetch SmolLM2-135M, look at this machine, plan for four platforms, answer a question"
	@echo "make test      run the tests (ARGS='tests/unit -k name' narrows them)"
	@echo "make test-triton  hold the portable kernels, and adapters over them, to the contract in Triton's interpreter"
	@echo "make compile      compile the portable kernels for every arch and judge their figures"
	@echo "make test-xpu     compile them for Intel GPUs and run the result on the CPU, in an environment of its own"
	@echo "make test-ipex    run the adapter of Intel's extension on the CPU, in an environment of its own (7 GB)"
	@echo "make matrix    write the support and parity tables of matrix/ anew; make check-matrix sees that they are"
	@echo "make test-page    open the support page in headless Chromium"
	@echo "make proofs    run the conformance suites and write what they prove into matrix/ (half an hour)"
	@echo "make lint      ruff, mypy, import-linter and actionlint"
	@echo "make package   build the wheel and check it in an environment without torch"

define make_venv
@test -n "$(PYTHON)" || { echo "make: no python3.11 or python3 on PATH; install Python 3.11 or set PYTHON=" >&2; exit 2; }
@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' \
  || { echo "make: $(PYTHON) is $$($(PYTHON) -V); hal needs Python 3.11 or newer, set PYTHON=" >&2; exit 2; }
@test -x $(1)/bin/pip || $(PYTHON) -c 'import ensurepip, venv' 2>/dev/null \
  || { echo "make: $(PYTHON) cannot make virtual environments; on Debian: apt-get install python3-venv" >&2; exit 2; }
@test -x $(1)/bin/pip || { rm -rf $(1); $(PYTHON) -m venv $(1); }
endef

$(STAMP): pyproject.toml constraints-cpu.txt
	$(call make_venv,$(VENV))
	$(VENV)/bin/pip install --quiet --disable-pip-version-check -c constraints-cpu.txt -e '.[test]'
	@touch $@

# triton-xpu is a triton by another name, in the same folder: torch's own, where it brings one, has to go first.
$(XPU_STAMP): pyproject.toml constraints-xpu.txt
	$(call make_venv,$(XPU_VENV))
	$(XPU_VENV)/bin/pip install --quiet --disable-pip-version-check -c constraints-xpu.txt -e '.[torch]' \
	  pytest pyopencl intel-opencl-rt intel-cmplr-lib-rt
	$(XPU_VENV)/bin/pip uninstall --quiet --disable-pip-version-check --yes triton triton-xpu
	$(XPU_VENV)/bin/pip install --quiet --disable-pip-version-check --pre -c constraints-xpu.txt triton-xpu
	@mkdir -p $(XPU_ICD)
	@echo "$(CURDIR)/$(XPU_VENV)/lib/libintelocl.so" > $(XPU_ICD)/intel.icd
	@touch $@

$(IPEX_STAMP): pyproject.toml constraints-ipex.txt
	$(call make_venv,$(IPEX_VENV))
	$(IPEX_VENV)/bin/pip install --quiet --disable-pip-version-check -c constraints-ipex.txt -e '.[torch,xpu-ipex]' \
	  pytest hypothesis
	@touch $@

demo: $(STAMP)
	$(VENV)/bin/python examples/fetch_smollm2.py $(MODEL)
	$(VENV)/bin/hal doctor
	$(VENV)/bin/hal explain $(MODEL) $(TARGETS)
	$(VENV)/bin/hal explain $(COMPOSITE) $(TARGETS) --memory 80
	$(VENV)/bin/hal generate $(MODEL) "What is the capital of France?" --max-new-tokens 32 --stats

test: $(STAMP)
	$(VENV)/bin/python -m pytest $(ARGS)

# The interpreter is chosen when a kernel is decorated, so this needs a process of its own.
test-triton: $(STAMP)
	TRITON_INTERPRET=1 $(VENV)/bin/python -m pytest tests/conformance/triton tests/differential \
	  tests/conformance/vendors/test_steps.py tests/conformance/vendors/test_models.py $(ARGS)

compile: $(STAMP)
	$(VENV)/bin/hal compile $(ARGS)

test-xpu: $(XPU_STAMP)
	OCL_ICD_VENDORS=$(CURDIR)/$(XPU_ICD) LD_LIBRARY_PATH=$(CURDIR)/$(XPU_VENV)/lib \
	  $(XPU_VENV)/bin/python -m pytest tests/xpu $(ARGS)
	$(XPU_VENV)/bin/hal compile $(addprefix --device xpu:,pvc bmg)

test-ipex: $(IPEX_STAMP)
	$(IPEX_VENV)/bin/python -m pytest tests/conformance/vendors/test_real.py -k "itself or ipex" $(ARGS)

# Tables of hal's own backends alone, whatever else is installed.
matrix: $(STAMP)
	HAL_PLUGINS=none $(VENV)/bin/hal matrix --write matrix

check-matrix: $(STAMP)
	HAL_PLUGINS=none $(VENV)/bin/hal matrix --check matrix
	HAL_PLUGINS=none $(VENV)/bin/hal matrix parity >/dev/null
	.ci/compare-parent $(VENV)/bin/hal

test-page: $(STAMP)
	$(VENV)/bin/python tests/browser/check_page.py

# Reports name the commit that they were made at: commit first, then run this, then `make matrix`.
proofs: $(STAMP) $(XPU_STAMP)
	$(VENV)/bin/python -m pytest -q tests/conformance/test_conformance.py --proof matrix/report-cpu.json
	TRITON_INTERPRET=1 $(VENV)/bin/python -m pytest -q tests/conformance/triton/test_conformance.py \
	  --proof matrix/report-triton.json
	$(VENV)/bin/python -m pytest -q tests/conformance/vendors/test_adapters.py --proof matrix/report-vendors.json
	$(VENV)/bin/hal compile --proof matrix/report-compile.json
	OCL_ICD_VENDORS=$(CURDIR)/$(XPU_ICD) LD_LIBRARY_PATH=$(CURDIR)/$(XPU_VENV)/lib \
	  $(XPU_VENV)/bin/python -m pytest -q tests/xpu/test_executed.py --proof matrix/report-xpu.json
	$(XPU_VENV)/bin/hal compile $(addprefix --device xpu:,pvc bmg) --proof matrix/report-compile-xpu.json

lint: lint-ruff lint-format lint-types lint-imports lint-workflows

lint-ruff: $(STAMP)
	$(VENV)/bin/ruff check

lint-format: $(STAMP)
	$(VENV)/bin/ruff format --check

lint-types: $(STAMP)
	$(VENV)/bin/mypy

lint-imports: $(STAMP)
	$(VENV)/bin/lint-imports

lint-workflows: $(STAMP)
	$(VENV)/bin/actionlint

package: $(STAMP)
	$(VENV)/bin/python tests/packaging/check_wheel.py

clean:
	rm -rf $(VENV) $(XPU_VENV) $(IPEX_VENV) build dist *.egg-info .mypy_cache .ruff_cache .pytest_cache .import_linter_cache
