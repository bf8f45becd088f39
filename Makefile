# make demo    the whole path on this machine, in one terminal
# make demo-postgres   the same on three PostgreSQL servers, with Debezium
# make test    all tests
# make check   format, lint, types, import layers, fast tests
# make bench   the benchmark table            make schemas   write schemas/ anew
# make lab-table   measure every algorithm and write docs/ anew (some minutes)
# make setup   what the others need; does nothing twice           make clean   removes all of it
.DELETE_ON_ERROR:
.PHONY: setup tools demo demo-postgres test check bench schemas lab-table clean

PYTHON ?= python3
BIN := .venv/bin
STAMPS := .venv/.stamps

setup: tools $(STAMPS)/linked $(STAMPS)/broker $(STAMPS)/connect

demo: setup
	@$(BIN)/viewkeeper demo

demo-postgres: setup
	@$(BIN)/viewkeeper demo --postgres

test: setup
	VIEWKEEPER_TESTS=thorough $(BIN)/pytest -n 2 --dist worksteal tests

check: setup
	$(BIN)/ruff format --check app tests
	$(BIN)/ruff check app tests
	$(BIN)/mypy
	$(BIN)/lint-imports --config setup.cfg
	$(BIN)/pytest -q -n 2 tests/core

bench: setup
	@$(BIN)/python -m viewkeeper.bench

schemas: setup
	$(BIN)/python -m viewkeeper.schemas schemas

lab-table: setup
	@$(BIN)/viewkeeper lab table --histories 2000 --seed 7 --html docs --csv docs/laboratory.csv

clean:
	rm -rf .venv build demo .pytest_cache .mypy_cache .ruff_cache .hypothesis .import_linter_cache
	find app tests -name __pycache__ -type d -prune -exec rm -rf {} +

# One sentence for the first thing that is missing, with the command that installs it.
tools:
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null || { \
	  echo 'viewkeeper needs Python 3.11 or newer; install it: sudo apt-get install python3 python3-venv' \
	    '(or name one: make PYTHON=python3.12 ...)' >&2; exit 2; }
	@test -x $(BIN)/python || $(PYTHON) -c 'import ensurepip, venv' 2>/dev/null || { \
	  echo 'viewkeeper needs the venv module of Python; install it: sudo apt-get install python3-venv' >&2; exit 2; }
	@java="$${JAVA_HOME:+$$JAVA_HOME/bin/}java"; \
	  version=$$($$java -version 2>&1 | sed -n 's/.*version "\([0-9]*\).*/\1/p' | head -1); \
	  test "$${version:-0}" -ge 17 || { \
	  echo 'viewkeeper needs Java 17 or newer; install it: sudo apt-get install openjdk-17-jre-headless' >&2; exit 2; }
	@command -v mvn >/dev/null || { \
	  echo 'viewkeeper needs Maven; install it: sudo apt-get install maven' >&2; exit 2; }

$(STAMPS)/venv:
	$(PYTHON) -m venv .venv
	@mkdir -p $(STAMPS) && touch $@

$(STAMPS)/packages: requirements.lock setup.cfg pyproject.toml $(STAMPS)/venv
	$(BIN)/pip install --quiet --disable-pip-version-check -r requirements.lock
	$(BIN)/pip install --quiet --disable-pip-version-check --no-deps --no-build-isolation -e .
	@touch $@

$(STAMPS)/spark $(STAMPS)/broker $(STAMPS)/connect: $(STAMPS)/%: pom.xml $(STAMPS)/venv
	@rm -rf .venv/jars/$*
	mvn --quiet --batch-mode -P $* dependency:copy-dependencies -DoutputDirectory=$(CURDIR)/.venv/jars/$*
	@touch $@

# Spark's class path is the folder jars/ of pyspark: links there spare every session a spark.jars setting.
$(STAMPS)/linked: $(STAMPS)/packages $(STAMPS)/spark
	@target=$$($(BIN)/python -c 'import importlib.util as u; print(u.find_spec("pyspark").submodule_search_locations[0])')/jars; \
	  find "$$target" -type l -delete; ln -s $(CURDIR)/.venv/jars/spark/*.jar "$$target"
	@touch $@
