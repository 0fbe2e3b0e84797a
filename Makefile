# hbpack: `make` lists the targets.
PYTHON ?= python3
VENV   ?= .venv
BIN    := $(VENV)/bin
PINS   ?= -c constraints.txt
# Bytecode is kept even where the machine says otherwise: the tests start hundreds of Pythons, each of which would compile
# all that it imports.
unexport PYTHONDONTWRITEBYTECODE
PIP    := $(BIN)/python -m pip install --quiet --disable-pip-version-check $(PINS)
SAMPLE := examples/sample
SOURCES := packer_cli tests scripts examples

.DEFAULT_GOAL := help
.PHONY: help demo test coverage test-slow test-trainers test-without-deps test-lowest test-newest soak dist check check-code check-docs format docs site bench bench-gpu bench-train sample clean

help:  ## List the targets
	@grep -hE '^[a-z-]+:.*##' $(MAKEFILE_LIST) | sed -E 's/:.*## /\t/' | expand -t 12

$(VENV)/.made:
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || { echo "hbpack needs Python 3.11 or newer; run make PYTHON=python3.x"; exit 1; }
	$(PYTHON) -m venv $(VENV)
	touch $@

# Dependency groups need pip 25.1, and Python 3.11 brings 23.2.
$(VENV)/.pip: $(VENV)/.made constraints.txt
	$(PIP) --upgrade pip
	touch $@

$(VENV)/.demo: $(VENV)/.made pyproject.toml constraints.txt
	$(PIP) -e .
	touch $@

# Python compiles what is imported; compiling all that is installed takes most of a minute.
$(VENV)/.dev: $(VENV)/.pip pyproject.toml constraints.txt
	$(PIP) --no-compile -e '.[torch]' --group dev
	touch $@ $(VENV)/.demo

$(VENV)/.site: $(VENV)/.made pyproject.toml constraints.txt
	$(PIP) zensical
	touch $@

$(VENV)/.bench: $(VENV)/.dev
	$(PIP) -e '.[torch]' --group dev --group bench
	touch $@

demo: $(VENV)/.demo  ## Pack the bundled sample corpus and show what came out
	$(BIN)/hbpack pack $(SAMPLE)/chats.jsonl $(SAMPLE)/journals.jsonl --tokenizer $(SAMPLE)/tokenizer \
	    --groups 4k:1,16k:4 --gpus 8 --output demo-out
	@echo
	@echo "The packed data set is in demo-out; look at demo-out/hbpack.json, or run: $(BIN)/hbpack stats demo-out"

# Work stealing keeps most files in one process, which makes their sets and compiles their kernels once.
test: $(VENV)/.dev  ## Run the tests
	$(BIN)/python -m pytest -m "not slow and not soak" -n auto --dist worksteal

coverage: $(VENV)/.dev  ## Run the tests, and list the lines that none runs; no share is required
	$(PIP) pytest-cov
	$(BIN)/python -m pytest -m "not slow and not soak" -n auto --dist worksteal --cov=packer_cli --cov-report=term:skip-covered

test-slow: $(VENV)/.dev  ## Run the tests that take long or need much memory
	$(BIN)/python -m pytest -m slow

test-trainers: $(VENV)/.dev  ## Run every trainer on 2, 4 and 6 processes, and compare with one process
	$(BIN)/python -m pytest -m trainers tests/examples

test-without-deps: $(VENV)/.dev  ## Run the tests of trainers that cannot be installed beside hbpack as their metadata asks
	$(BIN)/python -m tests.without_deps

soak: $(VENV)/.dev  ## Run the tests of thousands of random cases
	$(BIN)/python -m pytest -m soak -n auto

# The trainers of the examples need newer versions than the lowest that hbpack allows, and the docs show what the pinned
# ones print.
test-lowest: $(VENV)/.dev  ## Run the tests with the lowest versions of the dependencies that pyproject.toml allows
	mkdir -p build
	$(BIN)/uv pip compile --quiet --resolution lowest-direct --extra remote --extra ray pyproject.toml -o build/lowest.txt
	test -d .venv-lowest || $(PYTHON) -m venv .venv-lowest
	VIRTUAL_ENV=.venv-lowest $(BIN)/uv pip install --quiet -c build/lowest.txt -e '.[torch,remote,ray]' --group test
	.venv-lowest/bin/python -m pytest -m "not slow and not soak" -n auto --dist worksteal --ignore tests/examples --ignore tests/docs

test-newest:  ## Run the tests with the newest versions of the dependencies
	$(MAKE) test VENV=.venv-newest PINS=--upgrade

dist: $(VENV)/.dev  ## Build both distributions in dist/, and try them in environments of their own
	rm -rf dist && $(BIN)/python scripts/build_dists.py dist
	HBPACK_DISTS=dist $(BIN)/python -m pytest -m slow -n auto tests/install

check: $(VENV)/.dev site  ## What CI checks besides the tests: format, lint, types, docs, generated files
	$(MAKE) -j 2 check-docs check-code

check-code: $(VENV)/.dev
	$(BIN)/ruff format --check $(SOURCES)
	$(BIN)/ruff check $(SOURCES)
	$(BIN)/python scripts/docstrings.py
	$(BIN)/mypy
	$(BIN)/python -m pytest --quiet --doctest-modules packer_cli
	$(BIN)/python scripts/generate.py --check
	$(BIN)/python scripts/figures.py --check

check-docs: $(VENV)/.dev  ## Run the code blocks of the docs as a reader would, with a wheel and outside the clone
	$(BIN)/python -m pytest --quiet -m slow -n auto --dist worksteal tests/docs

format: $(VENV)/.dev  ## Format the code
	$(BIN)/ruff format $(SOURCES)
	$(BIN)/ruff check --fix $(SOURCES)

docs: $(VENV)/.dev  ## Make the generated docs, figures and schemas
	$(BIN)/python scripts/generate.py
	$(BIN)/python scripts/figures.py

PAGES := build/pages
site: $(VENV)/.site  ## Build the documentation as a site, in build/site
	rm -rf $(PAGES) && mkdir -p $(PAGES)
	cp -r README.md CONTRIBUTING.md CHANGELOG.md docs examples schemas $(PAGES)
	$(BIN)/zensical build --clean --strict --config-file mkdocs.yml
	@! grep -rnE '<(script|link|img)[^>]* (src|href)="https?:' build/site --include='*.html' || \
	    { echo 'a page loads something from another host'; exit 1; }

bench: $(VENV)/.bench  ## Compare hbpack with its peers; writes docs/benchmarks/
	$(BIN)/python -m tests.benchmark

bench-gpu: $(VENV)/.bench  ## Compare predictions with what this GPU measures: PIECE=profile, packs or cluster, or all
	$(BIN)/python -m tests.benchmark.gpu $(PIECE)

bench-train: $(VENV)/.bench  ## Train on each strategy's plan, on this machine's GPUs or CPU, and compare with predictions
	$(BIN)/python -m tests.benchmark.train --write

sample: $(VENV)/.dev  ## Rewrite the bundled sample corpus and tokenizer
	$(BIN)/python scripts/make_sample.py

clean:  ## Remove the environment and everything made
	rm -rf $(VENV) .venv-lowest .venv-newest dist demo-out bench-out build *.egg-info .pytest_cache .mypy_cache .ruff_cache .hypothesis
