# make setup is run by the others, and does nothing when nothing changed. Needs Python 3.11 or newer, no more.

PYTHON ?= python3
BIN := .venv/bin
STAMP := .venv/.installed-by-make
PEERS := tests/independent/.peers
APNS2 := .venv-apns2
LOWEST := .venv-lowest
DOCS := .venv-docs
OTHER = .venv-py$(shell $(PYTHON) -c 'import sys; print("%d.%d" % sys.version_info[:2])')
RELEASE := .venv-release
WHEEL := .venv-wheel
OTHERS := $(APNS2)/.installed-by-make $(LOWEST)/.installed-by-make $(DOCS)/.installed-by-make $(RELEASE)/.installed-by-make
# Of the wheel it is asked whether all is in it and runs: every import, the limiter, what the pages type. The walks that are
# left out read the sources.
FAST := tests/unit/test_imports.py tests/unit/test_light.py tests/contract/test_key_limiter.py tests/acceptance/test_pages.py \
  --deselect 'tests/acceptance/test_pages.py::test_the_walk[tutorials/rates.md]' \
  --deselect 'tests/acceptance/test_pages.py::test_the_walk[tutorials/chat.md]'
WITH_APNS2 := tests/contract/test_contract.py tests/contract/test_contract_faults.py tests/extra_apns2
# The tests that meet the libraries, RQ first.
WITH_LOWEST := tests/integration/test_stock_jobs.py tests/integration/test_rq_citizen.py tests/integration/test_rq_throttled.py \
  tests/integration/test_prefixes.py tests/laws/test_rq_by_hand.py tests/contract/test_contract.py tests/contract/test_contract_faults.py \
  tests/contract/providers tests/contract/producer tests/contract/test_key_limiter.py tests/unit/providers tests/unit/settings \
  tests/unit/store tests/integration/cli tests/integration/server tests/integration/testing tests/integration/test_tracing.py \
  tests/integration/test_webpush_worker.py
# How many tests run side by side, on two cores: no test measures time, and most of them wait more than they work.
AT_ONCE ?= 8
INSTALL := -m pip install --quiet --disable-pip-version-check
COMPILE := $(BIN)/uv pip compile --quiet --universal --upgrade --generate-hashes --python-version 3.11 --no-emit-package push-throttle \
  --custom-compile-command "make lock"

# Of make nemesis. A seed repeats what is done, not at which microsecond.
SECONDS ?= 600
SEED ?= $(shell date +%s)

.DEFAULT_GOAL := help
.PHONY: $(shell sed -n 's/^\([a-z0-9-]*\):.*/\1/p' Makefile)

help:  ## show this
	@awk -F ':.*## ' '/^[a-z0-9-]+:.*## /{printf "make %-24s %s\n", $$1, $$2}' $(MAKEFILE_LIST)

setup: $(STAMP)  ## build .venv from requirements.lock

$(STAMP): requirements.lock pyproject.toml
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || \
	  { echo "Python 3.11 or newer is needed; this is $$($(PYTHON) -V 2>&1). Try: make PYTHON=python3.12 …" >&2; exit 1; }
	@$(PYTHON) -c 'import ensurepip' 2>/dev/null || \
	  { echo "Python's venv is incomplete here; on Debian and Ubuntu: apt-get install python3-venv" >&2; exit 1; }
	@echo "Installing into .venv; the first time takes a minute or two …" >&2
	@test -x $(BIN)/python || $(PYTHON) -m venv .venv
	@$(BIN)/python $(INSTALL) --use-pep517 -r requirements.lock
	@$(BIN)/python $(INSTALL) --no-deps --no-build-isolation -e .
	@touch $@

# Environments beside .venv, whose pip fills them.
BESIDE = $(BIN)/python -m pip --python $(@D)/bin/python install --quiet --disable-pip-version-check

# As .venv, of the Python that PYTHON names: .venv-py3.13, say. An older Python's pip may not run there.
.venv-py%/.installed-by-make: requirements.lock pyproject.toml | setup
	@echo "Installing into $(@D) …" >&2
	@test -x $(@D)/bin/python || $(PYTHON) -m venv $(@D)
	@$(@D)/bin/python $(INSTALL) --use-pep517 -r $<
	@$(@D)/bin/python $(INSTALL) --no-deps --no-build-isolation -e .
	@touch $@

# Of other packages: .venv-apns2 from requirements-apns2.lock, and so on.
$(OTHERS): .venv-%/.installed-by-make: requirements-%.lock pyproject.toml | setup
	@echo "Installing into $(@D) …" >&2
	@test -x $(@D)/bin/python || $(PYTHON) -m venv --without-pip $(@D)
	@$(BESIDE) -r $<
	@$(BESIDE) --no-deps --no-build-isolation -e .
	@touch $@

environments: $(OTHERS)  ## build all environments that the targets below need, two at once by --jobs 2

demo: setup  ## send 2,144 notifications through four workers to local simulators; about 45 s
	@echo "Loading the demo. It takes about 45 seconds, and removes what it starts." >&2
	@$(BIN)/python -m workers.demo

demo-json: setup  ## the same, with a report as one JSON object
	@$(BIN)/python -m workers.demo --json

test: setup  ## all tests
	@$(BIN)/python -m pytest --numprocesses $(AT_ONCE) --dist worksteal

hostile: setup  ## the tests of attacks, a part of all tests; under ten minutes
	@$(BIN)/python -m pytest --numprocesses $(AT_ONCE) --dist worksteal tests/hostile

test-redis: setup  ## only the tests that depend on the version of Redis
	@$(BIN)/python -m pytest --numprocesses $(AT_ONCE) --dist worksteal \
	  tests/property/test_limiter_laws.py tests/property/test_backlogs.py tests/contract/producer/test_permits.py \
	  tests/contract/providers/apns/test_token.py tests/faults/test_fence.py tests/faults/test_out_of_memory.py tests/integration/producer/test_notifier.py \
	  tests/integration/operations/test_access.py tests/integration/redis_over_tls.py

test-apns2: setup $(APNS2)/.installed-by-make  ## the providers' contract with apns2, in an environment of its own
	@$(APNS2)/bin/python -m pytest --numprocesses $(AT_ONCE) --dist worksteal $(WITH_APNS2)

test-lowest: setup $(LOWEST)/.installed-by-make  ## the tests that meet libraries, with the lowest versions that pyproject.toml allows: RQ 2, for one
	@HYPOTHESIS_PROFILE=few $(LOWEST)/bin/python -m pytest --numprocesses $(AT_ONCE) --dist worksteal $(WITH_LOWEST)

test-python: $(OTHER)/.installed-by-make  ## the tests that depend on the version of Python: make test-python PYTHON=python3.13
	@$(OTHER)/bin/python -V
	@HYPOTHESIS_PROFILE=few $(OTHER)/bin/python -m pytest --numprocesses $(AT_ONCE) --dist worksteal \
	  tests/unit/[a-z]*/ tests/unit/test_imports.py tests/unit/test_log.py tests/unit/test_units.py \
	  tests/contract/providers tests/contract/producer tests/contract/test_contract.py tests/contract/test_direct.py

test-browser: setup  ## the tests of the pages of notifier serve, in Debian's chromium; PICTURES=build/pages keeps pictures
	@$(BIN)/python -m pytest tests/browser/in_a_browser.py tests/browser/rehearsal.py

pictures: setup  ## take the pictures of pages in the docs again, in chromium
	@$(BIN)/python -m pytest -q tests/browser/pictures.py

check-alerts:  ## test the alerts of deploy/prometheus with promtool (apt-get install prometheus)
	@promtool check rules deploy/prometheus/alerts.yaml
	@promtool check config --syntax-only deploy/prometheus/prometheus.yaml
	@promtool test rules tests/unit/alerts.promtool.yaml

check-independent: setup $(PEERS)/.installed-by-make  ## test our simulators of APNs, FCM and Web Push with clients by other authors
	@NOTIFIER_PEERS=$(CURDIR)/$(PEERS) $(BIN)/python -m pytest tests/independent/clients_of_our_simulator.py

$(PEERS)/.installed-by-make: tests/independent/requirements.txt tests/independent/package-lock.json
	@echo "Installing into $(PEERS) …" >&2
	@test -x $(PEERS)/bin/python || $(PYTHON) -m venv $(PEERS)
	@$(PEERS)/bin/python -m pip install --quiet --disable-pip-version-check -r tests/independent/requirements.txt
	@cp tests/independent/package.json tests/independent/package-lock.json $(PEERS)
	@cd $(PEERS) && PATH="$$PWD/bin:$$PATH" npm ci --silent --no-audit --no-fund
	@touch $@

check-independent-server: setup  ## test our APNs client with the server that the file $NOTIFIER_INDEPENDENT_APNS describes
	@test -n "$$NOTIFIER_INDEPENDENT_APNS" || \
	  { echo "NOTIFIER_INDEPENDENT_APNS is to name a file; docs/internals/simulators.md shows what it contains" >&2; exit 1; }
	@$(BIN)/python -m pytest tests/independent/another_server.py

nemesis: setup  ## real workers and Redis with random faults: make nemesis SECONDS=600 SEED=7 [CLUSTER=partitions]
	@$(BIN)/python -m tests.nemesis.nemesis --seconds $(SECONDS) --seed $(SEED) $(if $(CLUSTER),--cluster $(CLUSTER))

stalls: setup  ## check the limits after stalls of a provider of 2, 8 and 30 s; seven minutes
	@STALLS_S="2 8 30" $(BIN)/python -m pytest -q tests/laws/test_stalls.py

chaos: setup  ## 20,000 notifications through workers of which 66 are killed; some minutes
	@$(BIN)/python -m pytest -q -s tests/faults/long_chaos.py

bench: setup  ## measure the figures that have a target; roughly with QUICK=--quick, as the others below that measure speed
	@$(BIN)/python -m benchmarks $(QUICK)

bench-sizes: setup  ## measure the cost of a message while a million wait; minutes, and 2 GB of memory
	@$(BIN)/python -m benchmarks --only sizes $(QUICK)

bench-instructions: setup  ## count Redis's instructions for a message; needs valgrind; some minutes
	@$(BIN)/python -m benchmarks.instructions

bench-calls: setup  ## count a worker's calls of Python functions for a message; seconds
	@$(BIN)/python -m benchmarks.python_calls

bench-peers: setup benchmarks/bullmq/.peers/.installed-by-make  ## compare the engine with BullMQ; needs node and npm
	@$(BIN)/python -m benchmarks.queues $(QUICK)

benchmarks/bullmq/.peers/.installed-by-make: benchmarks/bullmq/package.json benchmarks/bullmq/bullmq.mjs
	@mkdir -p $(@D) && cp benchmarks/bullmq/*.* $(@D) && cd $(@D) && npm install --silent --no-package-lock --no-audit --no-fund
	@touch $@

soak: setup  ## measure a worker's memory during half an hour of steady traffic
	@$(BIN)/python -m benchmarks.soak

bench-limiter: setup benchmarks/.peers/.installed-by-make  ## compare the limiter with limits, throttled-py, pyrate-limiter and a plain sorted set; an hour, or minutes with QUICK=--quick
	@$(BIN)/python -m benchmarks.limiter $(QUICK)

benchmarks/.peers/.installed-by-make:
	@$(BIN)/python $(INSTALL) --target benchmarks/.peers limits throttled-py pyrate-limiter
	@touch $@

bench-providers: setup  ## compare the providers' clients with their upper bounds and with others; about 3 minutes
	@$(BIN)/python -m benchmarks.providers $(QUICK)

soak-providers: setup  ## count connections during ten minutes of idle times, GOAWAYs, cuts and a restart
	@$(BIN)/python -m benchmarks.providers.soak

mutate: setup  ## check that the tests notice each of many wrong scripts; many minutes
	@$(BIN)/python tests/harness/mutants.py $(WORDS)

# To make a failing example shorter takes up to five minutes: the timeout of all tests would be told in its place.
soak-properties: setup  ## the property tests with six times the examples, new ones each time; minutes
	@HYPOTHESIS_PROFILE=explore $(BIN)/python -m pytest --timeout 1800 --numprocesses $(AT_ONCE) --dist worksteal tests/property

coverage: setup  ## coverage of lines and branches by all tests, in all processes; about 18 minutes
	@rm -rf build/coverage
	@$(MAKE) --no-print-directory coverage-add coverage-apns2 coverage-report

coverage-add: setup  ## add the coverage of some tests to what was measured before: make coverage-add TESTS=tests/unit AT_ONCE=0
	@mkdir -p build/coverage
	@$(BIN)/coverage run -m pytest --numprocesses $(AT_ONCE) --dist worksteal $(TESTS); status=$$?; \
	  $(BIN)/coverage combine --append --quiet && exit $$status

coverage-apns2: setup $(APNS2)/.installed-by-make  ## the same, for the tests with apns2
	@mkdir -p build/coverage
	@$(APNS2)/bin/coverage run -m pytest $(WITH_APNS2)
	@$(BIN)/coverage combine --append --quiet

coverage-report:  ## the coverage measured so far; a page for each module is in build/coverage/html
	@$(BIN)/coverage html --quiet
	@$(BIN)/coverage report --fail-under 95

lint: setup  ## style, types, layers and Lua
	@$(BIN)/ruff check .
	@$(BIN)/ruff format --check .
	@$(BIN)/mypy
	@$(BIN)/mypy examples/test_push.py
	@$(BIN)/lint-imports --no-logo --no-cache
	@$(BIN)/python tests/harness/lint_lua.py

docs: $(DOCS)/.installed-by-make  ## build the site into build/docs; a warning or a dead link between pages is an error
	@rm -rf build/docs
	@$(DOCS)/bin/sphinx-build --quiet --fail-on-warning --keep-going --conf-dir docs --doctree-dir build/doctrees . build/docs
	@echo "build/docs/index.html"

docs-links: $(DOCS)/.installed-by-make  ## check the links of the docs to other sites; needs the network
	@$(DOCS)/bin/sphinx-build --quiet --builder linkcheck --conf-dir docs --doctree-dir build/doctrees . build/links

# The build's own words only if it fails.
PACKED = mkdir -p build && { $(RELEASE)/bin/python -m build --no-isolation $(1) > build/log 2>&1 || { cat build/log >&2; exit 1; }; }

package: $(RELEASE)/.installed-by-make  ## build sdist and wheel into dist, twice, compare them, and check them as PyPI does
	@rm -rf dist build/again
	@$(call PACKED,--outdir dist .)
	@$(call PACKED,--outdir build/again .)
	@diff -r dist build/again && echo "dist is the same when it is built again"
	@$(RELEASE)/bin/twine check --strict dist/*
	@$(RELEASE)/bin/check-wheel-contents dist/*.whl

# An empty environment, and the tree of the sdist without its packages: what is tested can only be the wheel.
test-wheel: package  ## test the built wheel: imports, the limiter, the commands of the docs, types, the SBOM
	@rm -rf $(WHEEL) build/tree && mkdir -p build/tree
	@sed -e '/^ /d' -e 's/ *\\$$//' requirements.lock > build/constraints.txt  # the versions alone: the wheel has no hash there
	@$(PYTHON) -m venv $(WHEEL)
	@$(WHEEL)/bin/python $(INSTALL) --constraint build/constraints.txt "$$(echo dist/*.whl)"
	@$(WHEEL)/bin/python tests/consumer/light.py
	@rm -rf build/limiter
	@$(call PACKED,--wheel --outdir build/limiter packaging/limiter)
	@$(RELEASE)/bin/twine check --strict build/limiter/*.whl
	@cd packaging/limiter && $(CURDIR)/$(RELEASE)/bin/check-wheel-contents ../../build/limiter/*.whl
	@$(PYTHON) -m venv build/limiter/venv
	@build/limiter/venv/bin/python $(INSTALL) --constraint build/constraints.txt build/limiter/*.whl
	@cd build/limiter && venv/bin/python ../../tests/consumer/limiter.py
	@build/limiter/venv/bin/python $(INSTALL) --constraint build/constraints.txt "$$(echo build/limiter/*.whl)[redis]"
	@cd build/limiter && venv/bin/python ../../tests/consumer/limiter.py
	@$(RELEASE)/bin/pyright --pythonpath $(CURDIR)/build/limiter/venv/bin/python tests/consumer/limiter.py
	@$(WHEEL)/bin/python $(INSTALL) --constraint build/constraints.txt "$$(echo dist/*.whl)[worker]"
	@$(RELEASE)/bin/cyclonedx-py environment --pyproject pyproject.toml --mc-type library --output-reproducible \
	  --output-file dist/push-throttle.cdx.json $(WHEEL)/bin/python
	@cd / && $(CURDIR)/$(WHEEL)/bin/python -c \
	  'from workers.demo.options import example as e; assert e("demo.yaml").is_file()'
	@$(WHEEL)/bin/python $(INSTALL) --constraint build/constraints.txt mypy fastapi "$$(echo dist/*.whl)[all,test]"
	@tar --extract --file dist/*.tar.gz --directory build/tree --strip-components 1
	@rm -r build/tree/notifier build/tree/workers
	@cd build/tree && $(CURDIR)/$(WHEEL)/bin/python -m mypy --strict --config-file= --cache-dir=.mypy tests/consumer/program.py
	@cd build/tree && $(CURDIR)/$(RELEASE)/bin/pyright --pythonpath $(CURDIR)/$(WHEEL)/bin/python tests/consumer/program.py
	@cd build/tree && $(CURDIR)/$(WHEEL)/bin/python -m pytest -p no:cacheprovider --numprocesses $(AT_ONCE) --dist worksteal $(FAST)

house: setup  ## figures of the source: lines by room, folders, imports upwards, retired words, tests
	@$(BIN)/python -m benchmarks.house

audit-dependencies: $(RELEASE)/.installed-by-make  ## list known faults of the packages in the lock; asks PyPI
	@$(RELEASE)/bin/pip-audit --strict --no-deps --disable-pip --requirement requirements.lock

lint-workflows: $(RELEASE)/.installed-by-make  ## check .github/workflows with zizmor
	@$(RELEASE)/bin/zizmor --quiet --offline --persona pedantic .github/workflows

format: setup  ## format the code
	@$(BIN)/ruff check --fix .
	@$(BIN)/ruff format .

reference: setup  ## make config/notifier.schema.json and pages of docs/reference from the code again
	@$(BIN)/python -m docs.generate

lock: setup  ## renew the locks: the newest versions that pyproject.toml allows, with hashes
	@$(BIN)/python $(INSTALL) uv
	@$(COMPILE) --extra dev --output-file requirements.lock pyproject.toml
	@echo "h2<3" | $(COMPILE) --override - --extra apns2 --extra test --output-file requirements-apns2.lock pyproject.toml
	@$(COMPILE) --resolution lowest-direct --extra django --extra test --output-file requirements-lowest.lock pyproject.toml
	@$(COMPILE) --extra server --extra webpush --extra worker --output-file requirements-image.lock pyproject.toml
	@$(COMPILE) --extra docs --output-file requirements-docs.lock pyproject.toml
	@$(COMPILE) --extra release --output-file requirements-release.lock pyproject.toml

clean:  ## remove what make built
	rm -rf build .venv .venv-py* $(APNS2) $(LOWEST) $(DOCS) $(RELEASE) $(WHEEL) $(PEERS) benchmarks/.peers benchmarks/*/.peers .mypy_cache .pytest_cache .ruff_cache .hypothesis dist
