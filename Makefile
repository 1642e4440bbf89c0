# Two commands do everything on a fresh machine with python3 (3.11 or newer):
#   make demo    a virtual environment, the package, the R8 news, twelve rounds of FedAlign, a table
#   make test    the same environment with the test tools, and every test
# Neither installs again while pyproject.toml is unchanged.

PYTHON ?= python3
VENV ?= .venv
ROUNDS ?= 12
BIN := $(VENV)/bin
PIP := $(BIN)/python -m pip --disable-pip-version-check

.PHONY: demo test lint format clean

demo: $(VENV)/installed
	$(BIN)/fedalign run r8-8 --rounds $(ROUNDS)

test: $(VENV)/installed-dev
	$(BIN)/python -m pytest

lint: $(VENV)/installed-dev
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

format: $(VENV)/installed-dev
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

$(VENV)/installed: pyproject.toml
	$(PYTHON) -c 'import sys; sys.exit("fedalign needs Python 3.11 or newer; run make PYTHON=python3.11") if sys.version_info < (3, 11) else None'
	test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	$(PIP) install -e .
	touch $@

$(VENV)/installed-dev: pyproject.toml
	$(MAKE) $(VENV)/installed
	$(PIP) install -e '.[dev]'
	touch $@

clean:
	rm -rf $(VENV) .pytest_cache .mypy_cache .ruff_cache .hypothesis
