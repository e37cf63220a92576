PYTHON ?= python3
RUN := .venv/bin

.PHONY: demo test lint types clean

demo: .venv/.installed
	$(RUN)/pseudopoint demo --out demo

test: .venv/.installed
	$(RUN)/python -m pytest

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

clean:
	rm -rf .venv demo
