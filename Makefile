# What one types here. `make` alone lists it.
#
#   PYTHON=python3.12    builds .venv with that Python
#   PIP_ARGS="..."       more arguments for pip install
#   MEASURE=1            `make notebooks` measures anew what was measured before
#   LAB_ARGS, PYTEST_ARGS, DEMO_ARGS, BENCH_ARGS, GPU_ARGS   more arguments for the command in question
export PYTHON PIP_ARGS
unexport PYTHONDONTWRITEBYTECODE # tests start hundreds of interpreters, and each would compile the same files

# Modules, not scripts: they work even where the path to .venv has a space or is longer than a "#!" line may be.
PY := .venv/bin/python
# Workers side by side, a test file each, in the order of pyproject.toml. PYTEST_ARGS="-n 0" has one process run all.
WORKERS := -n auto --maxprocesses 8 --no-loadscope-reorder --dist loadgroup
BOOKS := $(sort $(wildcard notebooks/*.ipynb))
# JupyterLab refuses to start as root unless told; who runs make as root (in a container) has decided already.
AS_ROOT := $(if $(filter 0,$(shell id -u)),--allow-root)

.PHONY: help lab demo test soak check notebooks handout slides bench gpu setup clean
.DEFAULT_GOAL := help

help: ## list these
	@awk -F ':.*## ' '/^[a-z]+:.*## / { printf "make %-10s %s\n", $$1, $$2 }' $(firstword $(MAKEFILE_LIST))
	@echo
	@echo "The first call of any sets up .venv. PYTHON=python3.12 builds it with that Python."

lab: setup ## the course, in JupyterLab
	$(PY) -m jupyter lab notebooks/00_start_here.ipynb $(AS_ROOT) $(LAB_ARGS)

demo: setup ## three schedules for real, without a browser
	$(PY) -m ppedu compare $(DEMO_ARGS)

test: setup ## every test; those that measure time run alone, notebooks last; minutes
	$(PY) -m pytest -m "not timing and not soak" $(WORKERS) $(PYTEST_ARGS)
	$(PY) -m pytest -m "timing and not soak" $(PYTEST_ARGS)
	$(PY) -m pytest --nbval --nbval-current-env --nbval-cell-timeout=120 notebooks/ $(PYTEST_ARGS)

soak: setup ## what `make test` has a sample of, in full: faults at random moments, leaks, random orders; minutes more
	$(PY) -m pytest -m soak $(PYTEST_ARGS)

check: setup ## lint, types and the tests of the core; about a minute
	$(PY) -m ruff check
	$(PY) -m ruff format --check
	$(PY) -m mypy
	$(PY) -m pytest -q --core $(WORKERS) $(PYTEST_ARGS)

notebooks: setup ## run the notebooks and write their outputs into them
	$(PY) scripts/notebooks.py $(if $(MEASURE),--measure) $(BOOKS)

handout: setup ## the notebooks without solutions, for a class, in handout/
	$(PY) scripts/handout.py $(BOOKS)

slides: setup ## the notebooks as slides, one HTML file each, in slides/
	$(PY) scripts/slides.py $(BOOKS)

bench: setup ## measure the figures that the README quotes
	$(PY) -m benchmarks $(BENCH_ARGS)

gpu: setup ## prove that real runs work here, on GPUs or CPU cores; minutes
	$(PY) -m ppedu.doctor $(GPU_ARGS)

setup: ## .venv with everything in it; at once when it is there
	@sh scripts/setup.sh

clean: ## remove .venv and all caches
	rm -rf .venv .venv.old build dist .pytest_cache .mypy_cache .ruff_cache .hypothesis
	find . -name __pycache__ -type d -prune -exec rm -rf {} +
