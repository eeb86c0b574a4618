# make ab     set up and run the main command on the CPU default
# make test   set up and run every check
# make selftest   planted faults through the whole pipeline, and that injected ones turn it red
PYTHON ?= python3.11
VENV := .venv
BIN := $(VENV)/bin

# The tests run in two halves beside each other, and the other checks beside them: each is one
# thread, and two cores are the least that a machine has.
HALF := tests/benchmarks tests/levers tests/experiments/ranks tests/experiments/workloads \
    tests/experiments/stack tests/experiments/family tests/experiments/calibration \
    tests/experiments/campaign

.PHONY: setup ab test lint types imports unit unit-one unit-other selftest clean

setup: $(VENV)/.ready

$(VENV)/.ready: pyproject.toml constraints.txt
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --upgrade pip
	$(BIN)/python -m pip install --quiet --constraint constraints.txt torch==2.13.0
	$(BIN)/python -m pip install --quiet --constraint constraints.txt --editable '.[dev]'
	touch $@

ab: setup
	$(BIN)/python cli.py ab fa2_nsplits_cap --ref off --cand auto

test: setup
	$(MAKE) --no-print-directory --jobs=2 --output-sync=line unit-one unit-other types lint imports

lint: setup
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/deptry .

types: setup
	$(BIN)/mypy

imports: setup
	$(BIN)/lint-imports

unit: unit-one unit-other

unit-one: setup
	$(BIN)/python -m pytest $(HALF)

unit-other: setup
	$(BIN)/python -m pytest $(addprefix --ignore=,$(HALF))

selftest: setup
	$(BIN)/python cli.py selftest
	$(BIN)/python cli.py selftest --only fast_3 --inject-slowdown 20%; test $$? -eq 1
	$(BIN)/python cli.py selftest --only fast_3 --inject-wrong-output; test $$? -eq 1

clean:
	rm -rf $(VENV) .mypy_cache .ruff_cache .pytest_cache .hypothesis .import_linter_cache
