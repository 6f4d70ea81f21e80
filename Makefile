# Every target sets up what it needs in .venv, from the versions pinned in constraints.txt.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
PIP_INSTALL := $(BIN)/python -m pip install --quiet --disable-pip-version-check --constraint constraints.txt

.DEFAULT_GOAL := help
.PHONY: help run demo test check format bench soak clean

help:  ## list the targets
	@grep -E '^[a-z]+:.*##' $(MAKEFILE_LIST) | sed -E 's/:.*## /\t/' | expand -t 10

run: $(VENV)/speech.stamp  ## transcribe the sample with two supervised stages
	$(BIN)/python run_pipeline.py --config configs/two_stage.yaml

demo: $(VENV)/core.stamp  ## run two toy stages, without the speech packages
	$(BIN)/python run_pipeline.py --config configs/countdown.yaml

test: $(VENV)/dev.stamp  ## run every test
	$(BIN)/python -m pytest

check: $(VENV)/dev.stamp  ## what CI runs: format, lint, types, import contracts, tests with coverage
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/mypy
	$(BIN)/lint-imports
	$(BIN)/coverage erase
	$(BIN)/coverage run -m pytest
	$(BIN)/coverage combine --quiet
	$(BIN)/coverage report

format: $(VENV)/dev.stamp  ## format the code and mend what the linter can mend
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

bench: $(VENV)/dev.stamp  ## compare with multiprocessing.Queue and ProcessPoolExecutor
	$(BIN)/python benchmarks/bench.py

soak: $(VENV)/dev.stamp  ## load and random kills for SECONDS=60, by the plan of SEED=…, and a table of what was lost
	$(BIN)/python benchmarks/soak.py --seconds $(or $(SECONDS),60) $(if $(SEED),--seed $(SEED))

clean:  ## remove the environment and every cache
	rm -rf $(VENV) build .coverage* .mypy_cache .pytest_cache .ruff_cache .import_linter_cache .hypothesis *.egg-info

$(BIN)/python:
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' \
		|| { echo "Python 3.11 or later is needed; name it with: make PYTHON=python3.11"; exit 1; }
	@$(PYTHON) -m venv $(VENV) \
		|| { rm -rf $(VENV); echo "Python's venv module is needed (on Debian: apt-get install python3-venv)"; exit 1; }

$(VENV)/core.stamp: pyproject.toml constraints.txt | $(BIN)/python
	$(PIP_INSTALL) --editable .
	@touch $@

$(VENV)/speech.stamp: pyproject.toml constraints.txt | $(BIN)/python
	$(PIP_INSTALL) --editable '.[speech]'
	@touch $@

$(VENV)/dev.stamp: pyproject.toml constraints.txt | $(BIN)/python
	$(PIP_INSTALL) --editable '.[speech,dev]'
	@touch $@
