# make demo and make test need only Python 3.11 or newer and make: they set up everything else themselves.
PYTHON ?= python3
PIP = $(1)/bin/python -m pip install --quiet --disable-pip-version-check --constraint constraints.txt
SETUP = pyproject.toml constraints.txt

.PHONY: demo test kernels ecosystem mutants quick docs lint bench table browser clean

demo: .venv-demo/ready  ## Figure 1 of the paper, and 300 runs that compare its methods; under two minutes
	.venv-demo/bin/wagmf online --out demo/figure1
	.venv-demo/bin/wagmf sweep experiments/demo.toml --records demo/runs.db --report demo/report.html

ELSEWHERE = tests/test_compiled.py tests/test_mutants.py tests/ecosystem

test: .venv/ready browser  ## tests and doctests; with COVERAGE=1 also what they cover, which takes longer
	.venv/bin/pytest -n 2 --dist loadgroup $(addprefix --ignore ,$(ELSEWHERE)) $(if $(COVERAGE),--cov --cov-report=term)

kernels: .venv/ready  ## what networks launch on a GPU, compiled for one where there is none
	.venv/bin/pytest -n 2 tests/test_compiled.py

ecosystem: .venv/ecosystem .venv/docs  ## on a cluster and in other people's trainers, and the site: tests that need more packages
	.venv/bin/pytest -n 2 --dist loadgroup tests/ecosystem

mutants: .venv/ready  ## the tests of the tests: every planted error must be seen
	.venv/bin/pytest -n 2 --dist loadgroup tests/test_mutants.py

quick: .venv/ready  ## the reproduction of the paper in small: on digits, in a few minutes
	.venv/bin/wagmf reproduce --quick

docs: .venv/docs  ## the site, into site/
	NO_MKDOCS_2_WARNING=1 .venv/bin/mkdocs build --strict

lint: .venv/ready  ## what CI asks of the text
	.venv/bin/ruff check .
	.venv/bin/ruff format --check .
	.venv/bin/pyright

bench: .venv/ready  ## every benchmark
	for script in benchmarks/*.py; do .venv/bin/python $$script || exit 1; done

table: .venv/ready  ## rewrite the generated tables of README.md and docs, and draw the pictures
	.venv/bin/python tests/test_documents.py

browser: .venv/ready  ## Chromium, with which the report is tested: the system's, or one that Playwright keeps
	@{ command -v chromium || command -v chromium-browser || command -v google-chrome; } > /dev/null || { test "$$(id -u)" = 0 && command -v apt-get \
		> /dev/null && apt-get update --quiet && apt-get install --quiet --yes --no-install-recommends chromium; } \
		|| .venv/bin/playwright install chromium

.venv-demo/ready: $(SETUP)
	$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11) and "wagmf needs Python 3.11 or newer: make PYTHON=python3.11")'
	@echo "Setting up .venv-demo (once, a few minutes) ..."
	$(PYTHON) -m venv .venv-demo
	$(call PIP,.venv-demo) --editable '.[lab]'
	touch $@

.venv/ready: $(SETUP)
	$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11) and "wagmf needs Python 3.11 or newer: make PYTHON=python3.11")'
	@echo "Setting up .venv (once, a few minutes) ..."
	$(PYTHON) -m venv .venv
	$(call PIP,.venv) --editable '.[test,lint]'
	touch $@

.venv/ecosystem: .venv/ready
	$(call PIP,.venv) --editable '.[ecosystem]'
	touch $@

.venv/docs: .venv/ready
	$(call PIP,.venv) --editable '.[docs]'
	touch $@

clean:  ## remove what make made
	rm -rf .venv .venv-demo demo reproduction-quick site build dist .coverage .coverage.* .pytest_cache .ruff_cache .hypothesis
