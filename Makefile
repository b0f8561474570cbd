# Every target sets up what it needs in .venv; nothing is to be installed by hand but Python >= 3.11.
PYTHON ?= python3
BIN := .venv/bin
PIP := $(BIN)/pip install --quiet --disable-pip-version-check -c constraints.txt

.PHONY: help setup demo test check docs bench clean

help:
	@echo "make setup   install linfnet into .venv"
	@echo "make demo    train, attack and certify a small net (minutes on a CPU)"
	@echo "make test    static checks and all tests"
	@echo "make check   static checks alone: ruff, pyright"
	@echo "make docs    build the documentation into build/site and check its links"
	@echo "make bench   time the CPU kernels beside torch.cdist and a matrix product"
	@echo "make clean   remove .venv and build files"

setup: .venv/.installed

demo: setup
	$(BIN)/linfnet demo

test: check
	$(BIN)/pytest --numprocesses 2
	$(BIN)/pytest --numprocesses 2 --impl reference --ignore=tests/ops --ignore=tests/report --ignore=tests/serve --ignore=tests/test_browser.py tests

docs: .venv/.installed-docs
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --strict --quiet
	$(BIN)/python docs/_site/check.py build/site

bench: setup
	$(BIN)/python benchmarks/cpu.py

check: .venv/.installed-dev
	$(BIN)/ruff format --check --quiet .
	$(BIN)/ruff check --quiet .
	$(BIN)/pyright

.venv/bin/python:
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11) and "linfnet needs Python >= 3.11, this is " + sys.version)'
	$(PYTHON) -m venv .venv

# The extension is built with the package: its sources count as much as the settings.
BUILT_FROM := pyproject.toml constraints.txt CMakeLists.txt $(wildcard src/linfnet/ops/csrc/*)

.venv/.installed: .venv/bin/python $(BUILT_FROM)
	$(PIP) -e '.[images,serve]'
	@touch $@

.venv/.installed-dev: .venv/bin/python $(BUILT_FROM)
	$(PIP) -e '.[dev]'
	@touch .venv/.installed $@

.venv/.installed-docs: .venv/bin/python $(BUILT_FROM)
	$(PIP) -e '.[images,serve,docs]'
	@touch $@

clean:
	rm -rf .venv build dist
