PYTHON ?= python3
RUN := .venv/bin
# Of benchmark: where the peers live, and options of benchmarks/speed/run.py.
ENVS ?= .venv-peers
OPTIONS ?=
PEERS := gpflow gpytorch gpjax
# Test files that compile little.
QUICK := citations damaged_model_files data datasets files initial kernels linalg matrix_functions metrics newton oracles \
	params persistence posteriors size table_cells table_files table_moments table_page table_targets tables

.PHONY: check demo test lint types docs wheel-check benchmark clean

demo: .venv/.installed
	$(RUN)/pseudopoint demo --out demo

test: .venv/.installed
	$(RUN)/python -m pytest -m "not default_flags"
	XLA_FLAGS= $(RUN)/python -m pytest -m default_flags

# What to run after every change: under 90 seconds.
check: lint types
	$(RUN)/python -m pytest $(QUICK:%=tests/test_%.py)

lint: .venv/.installed
	$(RUN)/ruff check .
	$(RUN)/ruff format --check .

types: .venv/.installed
	$(RUN)/pyright

# pip reads dependency groups from 25.1 on.
.venv/.installed: pyproject.toml
	$(PYTHON) -m venv .venv
	$(RUN)/python -m pip install --quiet --disable-pip-version-check --upgrade "pip>=25.1"
	$(RUN)/python -m pip install --quiet --editable . --group dev
	touch $@

# All that pages show is made again; then the site, in which every link has to lead somewhere.
docs: .venv/.installed .venv-docs/.installed
	$(RUN)/python pages/settings.py > docs/settings.md
	$(RUN)/python -m pseudopoint.reproduce.summary > experiments/results/README.md
	$(RUN)/python pages/pictures.py
	NO_MKDOCS_2_WARNING=1 .venv-docs/bin/mkdocs build --strict --quiet --site-dir site

# Wheel and sdist, built and tried in an environment of their own.
wheel-check:
	PYTHON=$(PYTHON) .ci/wheel

# An environment of its own, so that tests do not wait for it.
.venv-docs/.installed: pyproject.toml
	$(PYTHON) -m venv .venv-docs
	.venv-docs/bin/python -m pip install --quiet --disable-pip-version-check --upgrade "pip>=25.1"
	.venv-docs/bin/python -m pip install --quiet --group docs
	touch $@

benchmark: .venv/.installed $(PEERS:%=$(ENVS)/%/.installed)
	$(RUN)/python benchmarks/speed/run.py --envs $(ENVS) $(OPTIONS)

$(ENVS)/%/.installed: benchmarks/peers/requirements-%.txt
	test -x $(ENVS)/$*/bin/python || $(PYTHON) -m venv $(ENVS)/$*
	$(ENVS)/$*/bin/python -m pip install --quiet --disable-pip-version-check -r $<
	touch $@

clean:
	rm -rf .venv .venv-peers .venv-docs demo site
