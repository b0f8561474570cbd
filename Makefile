# Every target installs the packages that it needs into .venv. The only requirement is Python >= 3.11.
PYTHON ?= python3
BIN := .venv/bin
PIP := $(BIN)/pip install --quiet --disable-pip-version-check -c constraints.txt

.PHONY: help setup demo test test-fast check mutate docs bench clean

help:
	@echo "make setup       install linfnet into .venv"
	@echo "make demo        train, attack and certify a small net (about a minute on a CPU)"
	@echo "make test        static checks and all tests"
	@echo "make test-fast   tests that are not slow and need no processes, browser, emulator or GPU (under a minute)"
	@echo "make check       static checks: ruff, pyright, and clang-format if it is installed"
	@echo "make mutate      plant bugs in a copy of the package and report those that no test sees (half an hour)"
	@echo "make docs        generate the tables of the documentation, build it into build/site, check its links"
	@echo "make bench       time the CPU kernels, torch.cdist and a matrix product"
	@echo "make clean       remove .venv and build files"

setup: .venv/.installed

demo: setup
	$(BIN)/linfnet demo

USES_DISTANCES := attacks certificates distributed export nn systems theory train test_comparison.py test_evaluation.py test_losses.py

# The second command repeats the tests that compute distances, with the reference instead of the kernels.
test: check
	$(BIN)/pytest --numprocesses 2
	$(BIN)/pytest --numprocesses 2 --impl reference -m "not process and not browser" $(addprefix tests/,$(USES_DISTANCES))

test-fast: .venv/.installed-dev
	$(BIN)/pytest --numprocesses 2 -m "not process and not browser and not emulator and not slow and not gpu"

mutate: .venv/.installed-dev
	$(BIN)/python -m tools.mutate

docs: .venv/.installed-docs
	$(BIN)/python -m tools.generate_docs
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --strict --quiet
	$(BIN)/python docs/_site/check.py build/site

bench: setup
	$(BIN)/python benchmarks/cpu.py

check: .venv/.installed-dev
	$(BIN)/ruff format --check --quiet .
	$(BIN)/ruff check --quiet .
	$(BIN)/pyright
	@if command -v clang-format > /dev/null; then clang-format --dry-run -Werror $$(git ls-files '*.cpp' '*.hpp' '*.h' '*.cu' '*.cuh'); fi

.venv/bin/python:
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11) and "linfnet needs Python >= 3.11, this is " + sys.version)'
	$(PYTHON) -m venv .venv

# The package is installed again if one of these changes: the C++ extension is built when the package is installed.
BUILT_FROM := pyproject.toml constraints.txt CMakeLists.txt $(wildcard src/linfnet/ops/csrc/*)

# pip is silent: say what it does, because it takes minutes.
.venv/.installed: .venv/bin/python $(BUILT_FROM)
	@echo "Installing linfnet into .venv, once: pip downloads about 200 MB, most of it PyTorch for CPUs"
	@echo "(PyTorch with CUDA, which the default index offers on Linux, is larger: gigabytes), and builds the CPU"
	@echo "kernels with the C++ compiler. This takes one to five minutes, without further output …"
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
