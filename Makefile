# Every target does its own set-up: a virtual environment in .venv, made again only when what it is made from has changed. `make demo` puts
# the core into it, the others the core, every extra and the tools.
ifneq ($(origin PYTHON),undefined)
CHOSEN := $(shell $(PYTHON) --version 2>/dev/null)
endif
PYTHON ?= python3
BIN := .venv/bin
CORE := .venv/.core
READY := .venv/.ready
INSTALL := $(BIN)/pip install --quiet --constraint constraints.txt --editable

# Where another Python is asked for than the one in .venv, that one gives way.
ifneq ($(CHOSEN),)
ifneq ($(CHOSEN),$(shell $(BIN)/python --version 2>/dev/null))
FRESH := --clear
.PHONY: $(CORE) $(READY)
endif
endif

.NOTPARALLEL:
.PHONY: demo test slow gpu check format bench setup resolve matrix clean

demo: $(CORE)  ## the notes' ideas, run in the terminal; then a trained model translates
	@$(BIN)/regard demo
	@printf '\nAnd trained ones, which come with regard:\n\n'
	$(BIN)/regard translate "I love you very much." "Where is the station?" "We are going to the beach tomorrow." --to it
	$(BIN)/regard generate "I would like to" --seed 2

test: $(READY)  ## every test that is not slow
	$(BIN)/pytest -n auto -m "not slow"

slow: $(READY)  ## the tests that take minutes
	$(BIN)/pytest -m slow || [ $$? -eq 5 ]  # 5: there are none

gpu: $(READY)  ## on a machine with a GPU: all that only a GPU can show, and a stamp that it passed
	$(BIN)/python -m tests.gate.gpu

check: $(READY)  ## lint, format and types
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

format: $(READY)  ## puts the code into shape
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

bench: $(READY)  ## side by side with the peers
	$(BIN)/python benchmarks/attention.py
	$(BIN)/python benchmarks/data.py
	$(BIN)/python benchmarks/decode_cpu.py

setup: $(READY)

resolve:  ## whether the public index has what constraints.txt names, for every Python that is supported; installs nothing
	$(PYTHON) -m tests.resolve

matrix:  ## every test on four set-ups; ONLY=3.12 for one of them
	$(PYTHON) -m tests.matrix $(ONLY)

$(CORE): pyproject.toml constraints.txt
	$(PYTHON) -m venv $(FRESH) .venv
	$(INSTALL) .
	@touch $@

$(READY): pyproject.toml constraints.txt
	$(PYTHON) -m venv $(FRESH) .venv
	$(INSTALL) ".[dev]"
	@touch $(CORE) $@

clean:
	rm -rf .venv .matrix build dist *.egg-info .pytest_cache .mypy_cache .ruff_cache .hypothesis
