# Each target makes its own virtual environment from constraints.txt when there is none.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
READY := $(VENV)/.ready

.PHONY: help demo test lint format

help:
	@echo "make demo   fit every method to the paper's first figure: a table and a picture in demo/"
	@echo "make test   run the test suite"
	@echo "make lint   ruff (lint and format) and mypy"
	@echo "make format let ruff rewrite the sources"

$(READY): pyproject.toml constraints.txt
	test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --constraint constraints.txt --editable ".[report,test]"
	touch $(READY)

demo: $(READY)
	$(BIN)/paragp demo --out demo

test: $(READY)
	$(BIN)/pytest

lint: $(READY)
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

format: $(READY)
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .
