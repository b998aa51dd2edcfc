# make demo and make test need only Python 3.11 or newer and make: they set up everything else themselves.
PYTHON ?= python3
PIP = $(1)/bin/python -m pip install --quiet --disable-pip-version-check --constraint constraints.txt
SETUP = pyproject.toml constraints.txt

.PHONY: demo test lint bench table clean

demo: .venv-demo/ready  ## Figure 1 of the paper, in seconds
	.venv-demo/bin/wagmf online --out figure1

test: .venv/ready  ## every test, the doctests, and the coverage
	.venv/bin/pytest -n 2 --dist loadgroup --cov --cov-report=term

lint: .venv/ready  ## what CI asks of the text
	.venv/bin/ruff check .
	.venv/bin/ruff format --check .
	.venv/bin/pyright

bench: .venv/ready  ## every benchmark
	for script in benchmarks/*.py; do .venv/bin/python $$script || exit 1; done

table: .venv/ready  ## rewrite the method table in README.md and docs/methods.md
	.venv/bin/python tests/test_documents.py

.venv-demo/ready: $(SETUP)
	$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11) and "wagmf needs Python 3.11 or newer: make PYTHON=python3.11")'
	@echo "Setting up .venv-demo (once, about a minute) ..."
	$(PYTHON) -m venv .venv-demo
	$(call PIP,.venv-demo) --editable '.[cli]'
	touch $@

.venv/ready: $(SETUP)
	$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11) and "wagmf needs Python 3.11 or newer: make PYTHON=python3.11")'
	@echo "Setting up .venv (once, a few minutes) ..."
	$(PYTHON) -m venv .venv
	$(call PIP,.venv) --editable '.[test,lint]'
	touch $@

clean:  ## remove what make made
	rm -rf .venv .venv-demo figure1 build dist .coverage .coverage.* .pytest_cache .ruff_cache .hypothesis
