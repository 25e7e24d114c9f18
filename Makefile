# Every command of the project. `make run` and `make test` need nothing but Debian, Python 3.11 or newer, make, git and a
# C compiler: they install the rest first. tests/lab/bootstrap.sh and tests/lab/build/ are where that is done.

PYTHON_ENV := .venv/bin/python
CHECKS := "ruff check ." "ruff format --check ." mypy lint-imports "deptry ."
SETUP := tests/lab/bootstrap.sh
# The lock is for every supported Python, and names no machine and no address: only versions and hashes.
COMPILE = .lab/uv/bin/python -m uv pip compile --universal --python-version 3.11 --generate-hashes \
	--no-config --no-header --no-emit-index-url --no-emit-find-links --quiet
UV_VERSION := 0.13.9

.DEFAULT_GOAL := help
.NOTPARALLEL:
.PHONY: help run stop test coverage lint bench prove venv packages viewers lab lock proto generate clean

help: ## List what there is to make
	@awk -F ':.*## ' '/^[a-z]+:.*## / { printf "make %-9s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)

run: lab packages ## Start a real cluster on this machine with Tenure in it, and show it
	@$(PYTHON_ENV) -m tests.lab.demo

stop: ## Stop what `make run` started
	@test ! -x $(PYTHON_ENV) || $(PYTHON_ENV) -m tests.lab down

test: lab packages viewers ## Run all tests, on a real cluster where it matters; ARGS="-k name" goes to pytest, ARGS="-m stress" for those that need a quiet machine
	@$(PYTHON_ENV) -m pytest -m "not stress" $(ARGS)

coverage: venv ## Run the unit tests and report branch coverage, a line per file
	@$(PYTHON_ENV) -m pytest -q -m "not cluster" --cov --cov-report=term:skip-covered $(ARGS)

lint: venv ## Check style, types, layers and dependencies; every check runs, also after one that fails
	@failed=; for check in $(CHECKS); do echo "$$check"; .venv/bin/$$check || failed="$$failed, $$check"; done; \
		test -z "$$failed" || { echo "lint failed: $${failed#, }" >&2; exit 1; }

bench: lab packages ## Measure: one JSON line per figure, kept in .lab/bench.jsonl; ONLY=name measures one
	@$(PYTHON_ENV) -m tests.bench $(if $(ONLY),--only '$(ONLY)')

prove: lab packages viewers ## Run the long randomised proofs; ONLY=name SEED=n repeats one
	@$(PYTHON_ENV) -m tests.prove $(if $(ONLY),--only '$(ONLY)') $(if $(SEED),--seed '$(SEED)')

venv: ## Make the Python environment .venv from the lock (PYTHON=... chooses the Python)
	@$(SETUP) venv

packages: ## Install the Debian packages that the lab's real node needs
	@$(SETUP) packages

viewers: ## Install the Debian packages that dashboards, alerts and the status page are tested with
	@$(SETUP) viewers

lab: venv ## Build the lab's programs: Kubernetes, containerd and Helm (TENURE_GO_CACHE=... moves Go's caches)
	@$(PYTHON_ENV) -m tests.lab.build

lock: venv ## Pin anew what pyproject.toml and requirements-*.in ask for; UPGRADE=1 takes the newest of everything
	@test -x .lab/uv/bin/uv || { echo "Installing uv $(UV_VERSION) into .lab/uv: it writes the lock."; \
		$(PYTHON_ENV) -m venv .lab/uv && .lab/uv/bin/python -m pip install --quiet uv==$(UV_VERSION); }
	$(COMPILE) $(if $(UPGRADE),--upgrade) pyproject.toml -o requirements.txt
	$(COMPILE) $(if $(UPGRADE),--upgrade) pyproject.toml requirements-dev.in -c requirements.txt -o requirements-dev.txt
	$(COMPILE) $(if $(UPGRADE),--upgrade) requirements-go.in -o requirements-go.txt

proto: venv ## Generate the messages of kubelet's plugin sockets from controllers/regions/wire/*.proto
	cd controllers/regions/wire && $(CURDIR)/$(PYTHON_ENV) -m grpc_tools.protoc -I. --python_out=. --pyi_out=. *.proto

generate: venv ## Write anew what is made from code: dashboards, list of metrics, the chart's schema and table of values
	$(PYTHON_ENV) -m charts.tenure.dashboards
	$(PYTHON_ENV) -m docs.metrics_reference
	$(PYTHON_ENV) -m tests.chart

clean: stop ## Stop the lab and remove all that was installed or built in this folder
	rm -rf .venv .lab build dist *.egg-info .coverage .hypothesis .mypy_cache .pytest_cache .ruff_cache .import_linter_cache
	find . -name __pycache__ -type d -prune -exec rm -rf {} +
