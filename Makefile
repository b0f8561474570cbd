# Every target sets up what it needs in .venv; nothing is to be installed by hand but Python >= 3.11.
PYTHON ?= python3
BIN := .venv/bin
PIP := $(BIN)/pip install --quiet --disable-pip-version-check -c constraints.txt

.PHONY: help setup demo test check clean

help:
	@echo "make setup   install linfnet into .venv"
	@echo "make demo    train, attack and certify a small net (minutes on a CPU)"
	@echo "make test    static checks and all tests"
	@echo "make check   static checks alone: ruff, pyright"
	@echo "make clean   remove .venv and build files"

setup: .venv/.installed

demo: setup
	$(BIN)/linfnet demo

test: check
	$(BIN)/pytest

check: .venv/.installed-dev
	$(BIN)/ruff format --check --quiet .
	$(BIN)/ruff check --quiet .
	$(BIN)/pyright

.venv/bin/python:
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11) and "linfnet needs Python >= 3.11, this is " + sys.version)'
	$(PYTHON) -m venv .venv

.venv/.installed: .venv/bin/python pyproject.toml constraints.txt
	$(PIP) -e .
	@touch $@

.venv/.installed-dev: .venv/.installed
	$(PIP) -e '.[dev]'
	@touch $@

clean:
	rm -rf .venv build dist
