# Everything in one environment, .venv in the checkout, that the first target which needs it makes.
#   make PYTHON=/path/to/python3.12 ...   this Python instead of the one that is found
#   make VENV=/path/to/folder ...         another environment
#   make test ARGS="-k allreduce -x"      arguments for pytest
#   make test STACK=spark-3.5             another set of versions, a file of constraints/, in .venv-spark-3.5
#   make test STACK=17.3                  one story on the packages of a Databricks runtime: 15.4, 16.4, 17.3 or 18
#   make demo IMAGES=/class/folders       your own images instead of the digits

SHELL := /bin/sh
DEFAULT_STACK := spark-4.1
STACK ?= $(DEFAULT_STACK)
RUNTIMES := 15.4 16.4 17.3 18
VENV ?= .venv$(if $(filter-out $(DEFAULT_STACK),$(STACK)),-$(STACK))
PYTHON ?=
IMAGES ?=
ARGS ?=
AIRFLOW ?= .airflow
PROCESSES := -n 3 --dist loadgroup --no-loadscope-reorder
export PYTHON

.DEFAULT_GOAL := help
.PHONY: help setup packages demo test test-long test-all test-unit test-stacks airflow test-airflow lint format doctor notebooks docs wheel release clean

help: ## this list
	@awk -F ': .*## ' '/^[a-z-]+:.*## / {printf "  make %-10s %s\n", $$1, $$2}' $(MAKEFILE_LIST)
	@awk '/^#   make/ {sub(/^# /, ""); print}' $(MAKEFILE_LIST)

demo: setup ## images to a scored Delta table, on a real two-executor Spark; sets up what is missing
	@"$(VENV)/bin/lakelens" demo $(if $(IMAGES),--images "$(IMAGES)")

ifneq ($(wildcard constraints/runtimes/$(STACK).txt),)
test:
	@.ci/runtime "$(STACK)" "$(VENV)" $(ARGS)
else
test: setup ## the tests: a real two-executor Spark, real Horovod ranks
	@"$(VENV)/bin/python" -m pytest -m "not long and not airflow" $(PROCESSES) $(ARGS)
endif

test-stacks: ## one story on the packages of each Databricks runtime; environments of 2 GB each, ARGS=--without-horovod compiles nothing
	@rm -f $(RUNTIMES:%=.venv-%.story); code=0; for stack in $(RUNTIMES); do .ci/runtime $$stack ".venv-$$stack" $(ARGS) || code=1; done; \
	    echo '| runtime | packages that pip changed | story | time |'; cat $(RUNTIMES:%=.venv-%.story) 2>/dev/null; exit $$code

test-long: setup ## the tests that take many seconds each: whole pipelines, other clusters, kills
	@"$(VENV)/bin/python" -m pytest -m "long and not airflow" $(PROCESSES) $(ARGS)

test-all: setup # both in one call: what waits and what computes run at the same time
	@"$(VENV)/bin/python" -m pytest -m "not airflow" $(PROCESSES) $(ARGS)

test-unit: packages ## the tests of pure logic: seconds, and no compiler
	@"$(VENV)/bin/python" -m pytest -m "unit and not long" $(PROCESSES) $(ARGS)

airflow: setup # the environments of test-airflow
	@.ci/airflow "$(AIRFLOW)-venv" "$(VENV)/bin/python" apache-airflow==2.11.2
	@.ci/airflow "$(AIRFLOW)3-venv" "$(VENV)/bin/python" apache-airflow==3.2.2 "cadwyn<7" "fastapi<0.137" # whose server fails on later ones

test-airflow: airflow ## the DAGs in a real Airflow, in environments of their own
	@LAKELENS_AIRFLOW="$(abspath $(AIRFLOW)-venv)" LAKELENS_AIRFLOW3="$(abspath $(AIRFLOW)3-venv)" \
	    "$(VENV)/bin/python" -m pytest -m airflow -n 0 $(ARGS)

lint: packages ## ruff, formatting, mypy --strict, the directions of imports and the places of docstrings
	@"$(VENV)/bin/ruff" check .
	@"$(VENV)/bin/ruff" format --check .
	@.ci/typecheck "$(VENV)/bin/python"
	@.ci/imports "$(VENV)/bin/python"
	@"$(VENV)/bin/python" .ci/docstrings.py

format: packages ## rewrite the sources as `make lint` wants them
	@"$(VENV)/bin/ruff" check --fix-only .
	@"$(VENV)/bin/ruff" format .

doctor: setup ## try every part: Python, Java, TensorFlow, Horovod, Petastorm, Delta, MLflow
	@"$(VENV)/bin/lakelens" doctor

notebooks: setup ## run the notebooks; then `make docs` shows them with their outputs
	@"$(VENV)/bin/python" -m pytest -m long -n 0 tests/notebooks --basetemp="$(CURDIR)/.notebooks" $(ARGS)

docs: ## the documentation as a site, in site/; a broken link fails
	@.ci/docs .docs-venv site
	@echo "site/index.html"

# Executors of Spark 3.5 import from .zip files, not from .whl: the same bytes under both names.
wheel: ## dist/lakelens-*.whl, and the same as .zip for spark-submit --py-files; needs nothing but a Python
	@scratch=$$(mktemp -d) && trap 'rm -rf "$$scratch"' EXIT && python=$$(.ci/find-python) && "$$python" -m venv "$$scratch" && \
	    "$$scratch/bin/python" -m pip wheel --quiet --no-deps --wheel-dir dist .
	@for wheel in dist/*.whl; do cp "$$wheel" "$${wheel%.whl}.zip"; done; ls -l dist

release: ## dist/ with sdist and wheel: built, checked by twine, installed in an empty environment and run there
	@.ci/release

setup: ## the environment with everything; at once when it is there
	@.ci/setup "$(VENV)" "$(STACK)"

packages: # the environment without Horovod
	@.ci/setup "$(VENV)" "$(STACK)" --without-horovod

clean: ## remove what was made in the checkout; the wheels that were compiled stay in the user's cache
	rm -rf .venv .venv-*.story .venv-* .venv.removing .airflow-venv .airflow3-venv .docs-venv .notebooks site build dist lakelens.egg-info .mypy_cache .ruff_cache .pytest_cache .hypothesis
	find . -name __pycache__ -type d -prune -exec rm -rf {} +
