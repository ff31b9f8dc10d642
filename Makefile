# `make demo` and `make test` set everything up by themselves; `make help` lists the rest.
PYTHON ?= python3
VENV ?= .venv
CONSTRAINTS ?= constraints.txt
BIN := $(VENV)/bin
# with READY= nothing is installed: the tools of $(VENV) run on the code that PYTHONPATH names
READY := $(VENV)/.ready
EXTRAS := $(if $(READY),$(VENV)/.extras)
# one thread per process: two test processes share the two cores instead of fighting over them
export OMP_NUM_THREADS ?= 1
# also where the environment forbids it: else each process that a test starts compiles our code again
export PYTHONDONTWRITEBYTECODE :=
# what measures coverage; `make ci` does, and so does: make test COVERED='$(COVER)'
COVER := --cov --cov-report=

PARTS := experiments distributed paper docs extras browser faults
.PHONY: help demo ci test $(PARTS:%=test-%) test-PART docs screenshots test-real test-slow test-oldest bench results coverage dist lint net golden clean
.NOTPARALLEL:  # `coverage` reads what the targets before it write

help:  ## list the targets
	@grep -E '^[a-zA-Z-]+:.*##' Makefile | sed -E 's/:.*##/\t/'

$(READY): pyproject.toml $(CONSTRAINTS)
	test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -c $(CONSTRAINTS) -e '.[dev]'
	touch $@

demo: $(READY)  ## pretrain, evaluate and draw, in three minutes on two CPU cores
	OMP_NUM_THREADS=2 $(BIN)/python examples/demo.py $(EPOCHS)

ci: COVERED := $(COVER)
ci: lint test test-experiments test-distributed test-paper test-docs docs test-extras test-browser test-faults dist coverage  ## all that must pass, in any clone

test: $(READY)  ## all tests but those of the targets below; reads nothing outside the repository
	$(BIN)/python -m pytest -n 2 --dist worksteal -m "not slow" --ignore=tests/distributed $(COVERED)

test-PART:  ## PART is experiments, distributed, paper, docs, extras, browser (needs Chromium and its driver) or faults
	@echo "PART is one of $(PARTS)"; exit 2

OPTIONS_distributed := --cov-config=tests/distributed/coverage.ini
OPTIONS_faults := -n 3 --dist worksteal
test-extras test-browser: $(EXTRAS)
$(PARTS:%=test-%): test-%: $(READY)
	$(BIN)/python -m pytest $(or $(OPTIONS_$*),-n 2 --dist worksteal) -m "not slow" tests/$* \
		--cov --cov-append --cov-report=

test-real: $(READY)  ## the paper's text and real images: make test-real SUPANCL_SHARED=FOLDER, which holds data/ and paper/
	@test -n "$(SUPANCL_SHARED)" || { echo "make test-real needs SUPANCL_SHARED=FOLDER, the folder that holds data/ (real images)" \
		"and paper/ (the paper's text)" >&2; exit 2; }
	SUPANCL_SHARED="$(SUPANCL_SHARED)" $(BIN)/python -m pytest -n 2 --dist loadfile tests/real

test-slow: $(READY)  ## the full forms of the studies, minutes each
	OMP_NUM_THREADS=2 $(BIN)/python -m pytest -m slow tests/paper

test-oldest:  ## the suite with the oldest supported versions
	$(MAKE) test VENV=.venv-oldest CONSTRAINTS=constraints-oldest.txt

coverage: $(READY)  ## after the targets of `make ci`: 90% of all lines have run
	$(BIN)/python -m coverage report --skip-covered --fail-under=90

$(EXTRAS): $(READY)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -c $(CONSTRAINTS) -e '.[dev,extras]'
	touch $@

docs: $(READY)  ## the site, in docs/_build: warnings are errors
	$(BIN)/python -m sphinx -q -W -b html docs docs/_build

screenshots: $(EXTRAS)  ## the pictures of pages in docs/figures: PHOTOS=FOLDER of class folders START=timm:NAME
	OMP_NUM_THREADS=2 $(BIN)/python tests/browser/screenshots.py $(PHOTOS) $(START)

$(VENV)/.bench: $(READY)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -c $(CONSTRAINTS) -e '.[dev,bench]'
	touch $@

# with BEFORE=TREE (a checkout or a commit) our own speed is compared with that tree's, without other libraries
BENCH_views := views.py
BENCH_step := step.py --rows cpu --rounds 5
BENCH_data := data.py
BENCH_evaluate := evaluate.py
BENCH_scaling := scaling.py --device cpu --parts classes slots stream step ranks
BENCH_trees := step.py
bench: $(if $(BEFORE)$(filter scaling trees,$(PART)),$(READY),$(VENV)/.bench)  ## PART=views, step, data, evaluate [BEFORE=TREE], scaling; or trees, on a GPU, with BEFORE
	@test -n "$(BENCH_$(PART))" || { echo "make bench needs PART=views, step, data, evaluate, scaling or trees" >&2; exit 2; }
	OMP_NUM_THREADS=$(if $(filter step evaluate,$(PART)),2,1) $(BIN)/python experiments/benchmarks/$(BENCH_$(PART)) \
		$(if $(BEFORE),--before $(BEFORE))

results: $(READY)  ## the tables of results in all pages, and their figures; ACCEPT=--accept also takes changed numbers
	$(BIN)/python -m experiments.evidence rows
	$(BIN)/python -m tests.test_golden_results $(ACCEPT)

dist: $(READY)  ## wheel and source archive in dist/, and a test of the wheel in a clean environment
	VENV=$(VENV) .ci/dist

lint: $(READY)  ## ruff, and mypy --strict
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy --strict src experiments/evidence

net: $(READY)  ## whether this tree computes what commit BASE computed, bit for bit
	$(BIN)/python tests/net.py $(BASE)

golden: $(READY)  ## update the golden losses, after a change that is meant to change them
	$(BIN)/python tests/golden.py

clean:  ## remove what was built, not what was trained
	rm -rf .venv .venv-oldest build dist .pytest_cache .mypy_cache .ruff_cache .hypothesis .coverage*
