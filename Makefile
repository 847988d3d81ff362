# make demo | test | lint | bench | clean. Everything happens in .venv; a second run installs nothing.

VENV   := .venv
BIN    := $(VENV)/bin
STAMPS := $(VENV)/stamps
# The first interpreter that is new enough and can make a virtual environment.
PYTHON ?= $(shell for p in python3 python3.13 python3.12 python3.11 python3.10 python; do \
	if $$p -c 'import sys; sys.exit(sys.version_info < (3, 10))' >/dev/null 2>&1; then echo $$p; exit; fi; done)
# Tests mostly wait for workers and clocks: a few more processes than one keep two cores busy.
TEST_PROCESSES ?= 3
PYTEST_ARGS ?=
export PIP_DISABLE_PIP_VERSION_CHECK := 1

.PHONY: help demo test lint bench clean services
help:
	@echo 'make demo    serve example_app with gunicorn, 4 workers, the embedded store (Ctrl-C stops it)'
	@echo 'make test    run all tests (PYTEST_ARGS="-k word" for some)'
	@echo 'make lint    ruff, ruff format --check, mypy --strict'
	@echo 'make bench   run the benchmarks and print their table'
	@echo 'make clean   remove what the other targets made'

demo: $(STAMPS)/demo
	@$(BIN)/python -m example_app.demo

test: services $(STAMPS)/test
	@# The scenarios kill real servers in real time. What failed beside others is run once more, alone: a machine
	@# that was too busy passes then, a fault fails again.
	$(BIN)/python -m pytest -n $(TEST_PROCESSES) --dist worksteal $(PYTEST_ARGS) || { test $$? -eq 1 && \
		echo 'Some tests failed. They are run once more, one at a time:' && \
		$(BIN)/python -m pytest --last-failed --last-failed-no-failures none $(PYTEST_ARGS); }

lint: $(STAMPS)/test
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

bench: $(STAMPS)/test
	$(BIN)/python -m benchmarks.run

clean:
	rm -rf $(VENV) build dist *.egg-info .mypy_cache .ruff_cache .pytest_cache .hypothesis instance
	find . -name __pycache__ -type d -prune -exec rm -rf {} +

# One stamp for each set of installed things; a changed pyproject.toml installs again.
$(STAMPS)/venv:
	@test -n "$(PYTHON)" || { echo 'No python3 of version 3.10 or newer was found: install one, or say make PYTHON=/path/to/python3.'; exit 1; }
	@$(PYTHON) -c 'import ensurepip, venv' 2>/dev/null || { echo "$(PYTHON) cannot make virtual environments: install them first (Debian, Ubuntu: apt-get install python3-venv)."; exit 1; }
	$(PYTHON) -m venv $(VENV)
	@mkdir -p $(STAMPS) && touch $@

$(STAMPS)/demo: pyproject.toml | $(STAMPS)/venv
	$(BIN)/python -m pip install --quiet --editable .
	@touch $@

$(STAMPS)/test: pyproject.toml | $(STAMPS)/venv
	$(BIN)/python -m pip install --quiet --editable '.[test]'
	@sh tests/install-mysqlclient.sh $(BIN)/python
	@touch $@ $(STAMPS)/demo

# Database servers come from the system. CI installs those that are missing; elsewhere their tests are skipped.
services:
	@sh tests/install-services.sh
