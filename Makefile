# Two commands do everything on a fresh machine with python3 (3.11 or newer):
#   make demo    a virtual environment, the package, the R8 news, analytic learning in seconds, then twelve rounds of FedAlign
#   make test    the same environment with the test tools, and the tests
# Neither installs again while pyproject.toml is unchanged.
#   make extras  Flower, ONNX and the rest, so that no test is skipped
#   make docs    the documentation site, in site/, without a network once its tools are installed; its search needs a server, such as
#                python -m http.server -b 127.0.0.1 -d site
#   make sbom    sbom.json, a bill of materials (CycloneDX) of what is installed
#   make fuzz    10,000 malformed files through every reader, and as many through the commands (FILES=...); make torture  kills, flips and full disks
#   make test-lowest  the tests with the oldest allowed versions of what the package requires, each wheel compared with its digest;
#                     TORCH=2.6.0 for the oldest torch too, which takes gigabytes on Linux
#   make test-slow  the tests that take minutes: real Flower processes over TLS, killed and restarted, and the like
#   make test-network  the same with Flower's own processes, a new one per message, which take ten times as long

PYTHON ?= python3
VENV ?= .venv
ROUNDS ?= 12
BIN := $(VENV)/bin
PIP := $(BIN)/python -m pip --disable-pip-version-check
LOWEST := $(VENV)-lowest/bin/python -m pip --disable-pip-version-check
TORCH ?=

FILES ?= 10000

.PHONY: demo test test-slow test-network test-lowest sbom fuzz torture extras docs lint format clean

demo: $(VENV)/installed
	$(BIN)/fedalign run r8-8 --set algorithm.name=analytic
	$(BIN)/fedalign run r8-8 --rounds $(ROUNDS)

test: $(VENV)/installed-dev
	$(BIN)/python -m pytest

test-slow: $(VENV)/installed-extras
	$(BIN)/python -m pytest -m slow -n 3 --no-loadscope-reorder # one of three waits for real Flower processes

test-network: $(VENV)/installed-extras
	$(BIN)/python -m pytest -m network -n 0

test-lowest: pyproject.toml tests/lowest.txt
	test -x $(VENV)-lowest/bin/python || $(PYTHON) -m venv $(VENV)-lowest
	$(LOWEST) install --no-deps --require-hashes -r tests/lowest.txt
	grep -oE '^[[:alnum:]-]+==[0-9.]+' tests/lowest.txt >$(VENV)-lowest/versions.txt
	$(LOWEST) install -e '.[dev]' $(if $(TORCH),torch==$(TORCH)) -c $(VENV)-lowest/versions.txt
	$(VENV)-lowest/bin/python -m pytest

sbom: $(VENV)/installed-extras
	$(BIN)/python benchmarks/sbom.py --extras all

fuzz: $(VENV)/installed-extras
	$(BIN)/python benchmarks/fuzz.py --files $(FILES)
	$(BIN)/python benchmarks/fuzz_commands.py --files $(FILES)

torture: $(VENV)/installed
	$(BIN)/python benchmarks/torture.py

lint: $(VENV)/installed-dev
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

format: $(VENV)/installed-dev
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

extras: $(VENV)/installed-extras

docs: $(VENV)/installed-docs
	NO_MKDOCS_2_WARNING=1 $(BIN)/python -m mkdocs build --strict --quiet

$(VENV)/installed: pyproject.toml
	$(PYTHON) -c 'import sys; sys.exit("fedalign needs Python 3.11 or newer; run make PYTHON=python3.11") if sys.version_info < (3, 11) else None'
	test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	$(PIP) install -e .
	touch $@

$(VENV)/installed-dev: pyproject.toml
	$(MAKE) $(VENV)/installed
	$(PIP) install -e '.[dev]'
	touch $@

$(VENV)/installed-extras: pyproject.toml
	$(MAKE) $(VENV)/installed-dev
	$(PIP) install -e '.[dev,all]'
	touch $@

$(VENV)/installed-docs: pyproject.toml
	$(MAKE) $(VENV)/installed
	$(PIP) install -e '.[docs]'
	touch $@

clean:
	rm -rf site $(VENV) $(VENV)-lowest .pytest_cache .mypy_cache .ruff_cache .hypothesis
