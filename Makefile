# The commands of people and CI alike. Everything is installed into .venv, from requirements.lock.

PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
STAMP := $(VENV)/.installed

.PHONY: demo test check bench pictures chaos clean install

demo: install ## the whole stack, 72 prompts through it, results.jsonl
	@$(BIN)/medusaq run examples/prompts.jsonl -o results.jsonl --fresh

test: install ## the test suite, in three processes: on two cores, one usually waits
	@$(BIN)/python -m pytest -n 3 --dist loadfile --no-loadscope-reorder

check: install ## formatting, lint, types, layers
	@$(BIN)/ruff check .
	@$(BIN)/ruff format --check .
	@$(BIN)/mypy
	@$(BIN)/lint-imports --no-cache

bench: install ## the figures of docs/reference/measurements.md, and those of the README's chart
	@$(BIN)/python -m tests.benchmarks --json docs/pictures/throughput.json $(BENCH)

pictures: install ## the pictures of the documents, from their sources
	@$(BIN)/python -m docs.pictures.architecture
	@test ! -e docs/pictures/throughput.json || $(BIN)/python -m docs.pictures.throughput

chaos: install ## every fault under load, in about 25 minutes; the table of docs/explanation/chaos.md
	@$(BIN)/python -m tests.chaos --write docs/explanation/chaos.md $(CHAOS)

clean: ## everything that was made here, the environment included
	@rm -rf $(VENV) .medusaq results.jsonl results.jsonl.run .mypy_cache .pytest_cache .ruff_cache .hypothesis build *.egg-info
	@find . -name __pycache__ -type d -prune -exec rm -rf {} +

install: $(STAMP)

# The compilers are needed once: llama-cpp-python has no wheel for every machine and is built from source.
$(STAMP): requirements.lock pyproject.toml
	@command -v $(PYTHON) >/dev/null || { echo "error: $(PYTHON) is missing: install Python 3.11 or newer, or set PYTHON=..."; exit 1; }
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || { echo "error: Python 3.11 or newer is needed, and $(PYTHON) is $$($(PYTHON) -V 2>&1); set PYTHON=..."; exit 1; }
	@$(PYTHON) -c 'import venv, ensurepip' 2>/dev/null || { echo "error: $(PYTHON) has no venv module: install python3-venv"; exit 1; }
	@command -v $${CXX:-c++} >/dev/null || command -v g++ >/dev/null || command -v clang++ >/dev/null || { echo "error: a C++ compiler is missing: install g++ or clang"; exit 1; }
	@command -v cmake >/dev/null || { echo "error: cmake is missing: install it with the system's packages, or pip install cmake"; exit 1; }
	@$(BIN)/python -m pip --version >/dev/null 2>&1 || $(PYTHON) -m venv $(VENV)
	@$(BIN)/python -c 'from importlib.metadata import version; version("llama-cpp-python")' 2>/dev/null || echo "installing; llama.cpp is built from source this first time, which takes about 5 minutes on two cores"
	@$(BIN)/python -m pip install --quiet --disable-pip-version-check -r requirements.lock
	@$(BIN)/python -m pip install --quiet --disable-pip-version-check --no-deps -e .
	@touch $@
