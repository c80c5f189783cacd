# The commands of people and CI alike. What they need is installed into .venv, in the versions of requirements.lock.

PYTHON ?= python3
# Where it is set, every process of the stack and of the tests compiles all sources anew.
unexport PYTHONDONTWRITEBYTECODE
VENV := .venv
BIN := $(VENV)/bin
# Four processes on two cores: most tests wait for services more than they compute.
PARALLEL := -n 4 --dist loadfile --no-loadscope-reorder --durations 10
SERVING := $(VENV)/.installed-serving
ALL := $(VENV)/.installed-all
PREBUILT := https://abetlen.github.io/llama-cpp-python/whl/cpu

.PHONY: demo test test-all test-fast check bench clients pictures chaos machines containers large-model release gpu-check portable clean install

demo: $(SERVING) ## the whole stack, a table of 100 rows through it, results.csv
	@$(BIN)/medusaq run examples/notes.csv -o results.csv --template-file examples/notes.txt --schema examples/notes.json --fresh
	@cat $(VENV)/install-times
	@echo
	@head -4 results.csv
	@echo
	@echo "To try next:"
	@echo "  $(BIN)/medusaq run examples/reviews.csv -o labelled.csv --template-file examples/reviews.txt --json 'sentiment:positive|negative' --raw"
	@echo "  $(BIN)/medusaq up     # keeps running: an HTTP API, which OpenAI's client can use"
	@echo "  docs/tutorials/first-results.md"
	@echo "The packaged model is for testing; models for real work: $(BIN)/medusaq models recommend"

test: install ## the tests that each change must pass
	@$(BIN)/python -m pytest $(PARALLEL) -m "not thorough"

test-all: install ## and those that repeat them for more models, formats, cases and states
	@$(BIN)/python -m pytest $(PARALLEL)

test-fast: install ## what starts no services and takes less than a second
	@$(BIN)/python -m pytest -n 2 --dist worksteal --fast -m "not thorough"

check: install ## formatting, lint, types, layers
	@$(BIN)/ruff check .
	@$(BIN)/ruff format --check .
	@$(BIN)/mypy
	@$(BIN)/lint-imports --no-cache

bench: install ## measures every table of the documents, for hours; records them and renders the documents
	@$(BIN)/python -m tests.benchmarks.all --record $(BENCH)

clients: install ## clients and frameworks with their own packages; the table of docs/reference/clients.md
	@$(BIN)/python -m tests.clients --write docs/reference/clients.md

pictures: install ## the pictures of the documents, and the tables and charts of what was measured
	@$(BIN)/python -m docs.pictures.architecture
	@$(BIN)/python -m docs.pictures.engine
	@$(BIN)/python -m docs.measured

chaos: install ## every fault under load, in about 25 minutes; the table of docs/explanation/chaos.md
	@$(BIN)/python -m tests.chaos --record $(CHAOS)
	@$(BIN)/python -m docs.measured

machines: install ## hosts that fail under load, as root, in a quarter of an hour; the table of docs/explanation/machines.md
	@$(BIN)/python -m tests.machines --record $(MACHINES)
	@$(BIN)/python -m docs.measured

containers: install ## the images and Compose on a Docker Engine, in 20 to 60 minutes; the tables of docs/explanation/containers.md
	@$(BIN)/python -m tests.containers --record $(CONTAINERS)
	@$(BIN)/python -m docs.measured

large-model: install ## models of 3 and 7 billion parameters through the whole system, for more than half an hour; the table of docs/how-to/memory.md
	@$(BIN)/python -m tests.large_model --record $(LARGE)
	@$(BIN)/python -m docs.measured

release: install ## builds the archives, tries every extra, pipx and uv in empty environments; RELEASE="--python PATH PATH PATH" names interpreters
	@$(BIN)/python -m tests.release $(RELEASE)

gpu-check: install ## what this machine's GPU does; ends with a page of results to send back
	@$(BIN)/python -m tests.gpu $(GPU)

portable: install ## a llama.cpp for every processor of this kind, which workers take where the other one dies
	@$(BIN)/python tools/install.py portable

clean: ## everything that was made here, the environment included
	@rm -rf $(VENV) .medusaq results.csv results.csv.run .mypy_cache .pytest_cache .ruff_cache .hypothesis build *.egg-info
	@find . -name __pycache__ -type d -prune -exec rm -rf {} +

install: $(ALL) ## all that developers need, tests and training included

# The compilers are needed once: llama-cpp-python has no wheel for every machine and is built from source.
define environment
	@command -v $(PYTHON) >/dev/null || { echo "error: $(PYTHON) is missing: install Python 3.11 or newer, or set PYTHON=..."; exit 1; }
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || { echo "error: Python 3.11 or newer is needed, and $(PYTHON) is $$($(PYTHON) -V 2>&1); set PYTHON=..."; exit 1; }
	@$(PYTHON) -c 'import venv, ensurepip' 2>/dev/null || { echo "error: $(PYTHON) has no venv module: install python3-venv"; exit 1; }
	@case "$$PIP_EXTRA_INDEX_URL" in *$(PREBUILT)*) exit 0;; esac; command -v $${CXX:-c++} >/dev/null || command -v g++ >/dev/null || command -v clang++ >/dev/null || { echo "error: a C++ compiler is missing: install g++ or clang, or set PIP_EXTRA_INDEX_URL=$(PREBUILT), which has llama.cpp compiled"; exit 1; }
	@case "$$PIP_EXTRA_INDEX_URL" in *$(PREBUILT)*) exit 0;; esac; command -v cmake >/dev/null || { echo "error: cmake is missing: install it with the system's packages, or pip install cmake"; exit 1; }
	@$(BIN)/python -m pip --version >/dev/null 2>&1 || { echo "creating $(VENV)"; $(PYTHON) -m venv $(VENV); }
endef

$(SERVING): requirements.lock pyproject.toml tools/install.py
	$(environment)
	@$(BIN)/python tools/install.py serving
	@touch $@

$(ALL): requirements.lock pyproject.toml tools/install.py
	$(environment)
	@$(BIN)/python tools/install.py all
	@touch $(SERVING) $@
