# Every target sets up the virtual environment it needs. `make help` lists them.
PYTHON ?= python3
WORKERS ?= 2
VENV := .venv
BIN := $(VENV)/bin
PIP := $(BIN)/python -m pip

# One thread per process: the suite runs on WORKERS processes, and small tensors are slower on more threads.
export OMP_NUM_THREADS ?= 1

CODE := src tests docs README.md CONTRIBUTING.md $(wildcard examples benchmarks)
PYTEST := $(BIN)/python -m pytest -n $(WORKERS)

.DEFAULT_GOAL := help
.PHONY: help demo test test-all chromium lint docs clean

help:  ## show this list
	@grep -hE '^[a-z-]+:.*##' $(MAKEFILE_LIST) | sed -E 's/^([a-z-]+):.*## (.*)/\1|\2/' | awk -F'|' '{printf "  make %-10s %s\n", $$1, $$2}'

$(BIN)/python:
	$(PYTHON) -m venv $(VENV)

# torch first and by its pin, so that no later resolution can choose another build of it.
$(VENV)/.base: pyproject.toml constraints.txt | $(BIN)/python
	$(PIP) install --quiet -c constraints.txt torch==$(shell sed -n 's/^torch==//p' constraints.txt)
	@touch $@

# One stamp per extra: .venv/.test, .venv/.docs, .venv/.cli.
$(VENV)/.%: $(VENV)/.base
	$(PIP) install --quiet -c constraints.txt -e '.[$*]'
	@touch $@

demo: $(VENV)/.cli  ## train a calibrated model on handwritten digits; the report is build/demo/report.html
	$(BIN)/bayesrule fit --ensemble 5 --out build/demo --force

lint: $(VENV)/.test  ## style, formatting, types and the layers of the package
	$(BIN)/ruff check $(CODE)
	$(BIN)/ruff format --check $(CODE)
	$(BIN)/mypy
	$(BIN)/lint-imports --no-cache

test: lint  ## lint, then every test that needs neither minutes nor a GPU
	$(PYTEST) -m "not slow and not gpu"

test-all: lint chromium  ## lint, then every test (those for a GPU are skipped where there is none)
	$(PYTEST)

# The report is tested in a real browser. It is a package of the system, so nothing here fails if there is none.
SUDO := $(shell [ "$$(id -u)" = 0 ] || echo 'sudo -n')
chromium:
	@if command -v chromium || command -v chromium-browser || command -v google-chrome; then :; \
	elif ! command -v apt-get >/dev/null || ! $(SUDO) true 2>/dev/null; then \
		echo "There is no Chromium and no right to install it: the tests of the report in a browser will be skipped."; \
	else \
		echo "Installing Debian's chromium, in which the report is tested."; \
		{ $(SUDO) apt-get update -qq; $(SUDO) env DEBIAN_FRONTEND=noninteractive apt-get install -y -qq \
			--no-install-recommends chromium >/dev/null; } \
		|| echo "Chromium could not be installed: the tests of the report in a browser will be skipped."; \
	fi

docs: $(VENV)/.docs $(VENV)/.cli  ## draw the picture, gather the results and build the site into site/
	$(BIN)/python docs/make_overview.py
	$(BIN)/python docs/make_results.py
	$(BIN)/mkdocs build --strict

clean:  ## remove what the other targets made, and the virtual environment
	rm -rf $(VENV) site build dist .pytest_cache .mypy_cache .ruff_cache .import_linter_cache .hypothesis
	find src tests docs -name __pycache__ -type d -prune -exec rm -rf {} +
