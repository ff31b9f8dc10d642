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

.PHONY: help demo ci test test-experiments test-distributed test-paper test-docs docs test-extras test-browser test-faults fuzz soak readme screenshots test-real need-shared test-slow test-oldest bench-views bench-data bench-evaluate \
	bench-step bench-trees bench-scaling results coverage dist lint typecheck net mutants golden clean
.NOTPARALLEL:  # `coverage` reads what the targets before it write

help:  ## list the targets
	@grep -E '^[a-z-]+:.*##' Makefile | sed -E 's/:.*##/\t/'

$(READY): pyproject.toml $(CONSTRAINTS)
	test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -c $(CONSTRAINTS) -e '.[dev]'
	touch $@

demo: $(READY)  ## pretrain, evaluate and draw, in three minutes on two CPU cores
	OMP_NUM_THREADS=2 $(BIN)/python examples/demo.py $(EPOCHS)

ci: COVERED := $(COVER)
ci: lint typecheck test test-experiments test-distributed test-paper test-docs docs test-extras test-browser test-faults dist coverage  ## all that must pass, in any clone

test: $(READY)  ## all tests but those of the targets below; reads nothing outside the repository
	$(BIN)/python -m pytest -n 2 --dist worksteal -m "not slow" --ignore=tests/distributed $(COVERED)

test-distributed: $(READY)  ## training with 2 and 4 processes against one
	$(BIN)/python -m pytest -m "not slow" tests/distributed --cov --cov-append --cov-config=tests/distributed/coverage.ini \
		--cov-report=

coverage: $(READY)  ## after the targets of `make ci`: 90% of all lines have run
	$(BIN)/python -m coverage report --skip-covered --fail-under=90

test-experiments: $(READY)  ## experiments/: the evidence, its page and the benchmarks
	$(BIN)/python -m pytest -n 2 --dist worksteal -m "not slow" tests/experiments --cov --cov-append --cov-report=

test-paper: $(READY)  ## the toy study, theorems and ablations; tables and figures, from the documented commands to the cell
	$(BIN)/python -m pytest -n 2 -m "not slow" tests/paper tests/tables_and_figures --cov --cov-append --cov-report=

test-docs: $(READY)  ## every bash and python block of README.md and docs/*.md
	$(BIN)/python -m pytest -n 2 -m "not slow" tests/docs --cov --cov-append --cov-report=

$(EXTRAS): $(READY)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -c $(CONSTRAINTS) -e '.[dev,extras]'
	touch $@

docs: $(READY)  ## the site, in docs/_build: warnings are errors
	$(BIN)/python -m sphinx -q -W -b html docs docs/_build

test-extras: $(EXTRAS)  ## what needs onnx, transformers, wandb, mlflow, lightning or accelerate
	$(BIN)/python -m pytest -n 2 -m "not slow" tests/extras --cov --cov-append --cov-report=

test-browser: $(EXTRAS)  ## the HTML pages in headless Chromium, which must be installed (Debian: chromium, chromium-driver)
	$(BIN)/python -m pytest -n 2 -m "not slow" tests/browser --cov --cov-append --cov-report=

test-faults: $(READY)  ## killed ranks, blocked disks, files of attackers: about two minutes
	$(BIN)/python -m pytest -n 3 --dist worksteal -m "not slow" tests/faults --cov --cov-append --cov-report=

fuzz: $(READY)  ## valid files changed at random: each is accepted, or refused with one line
	$(BIN)/python -m tests.long.fuzz

soak: $(READY)  ## an hour of commands and training: memory, open files and threads must stay flat
	$(BIN)/python -m tests.long.soak

readme: $(READY)  ## the README's blocks, and nothing else, in a clean clone of the last commit
	$(BIN)/python tests/readme_in_clone.py

test-real: need-shared $(READY)  ## the paper's text and real images: make test-real SUPANCL_SHARED=FOLDER
	SUPANCL_SHARED="$(SUPANCL_SHARED)" $(BIN)/python -m pytest -n 2 --dist loadfile tests/real

need-shared:
	@test -n "$(SUPANCL_SHARED)" || { echo "make test-real needs SUPANCL_SHARED=FOLDER, the folder that holds data/ (real images)" \
		"and paper/ (the paper's text)" >&2; exit 2; }

screenshots: $(EXTRAS)  ## the pictures of pages in docs/figures: PHOTOS=FOLDER of class folders START=timm:NAME
	OMP_NUM_THREADS=2 $(BIN)/python tests/browser/screenshots.py $(PHOTOS) $(START)

test-slow: $(READY)  ## the full forms of the studies, minutes each
	OMP_NUM_THREADS=2 $(BIN)/python -m pytest -m slow tests/paper

test-oldest:  ## the suite with the oldest supported versions
	$(MAKE) test VENV=.venv-oldest CONSTRAINTS=constraints-oldest.txt

$(VENV)/.bench: $(READY)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -c $(CONSTRAINTS) -e '.[dev,bench]'
	touch $@

# with BEFORE=TREE (a checkout or a commit) our own speed is compared with that tree's, without other libraries
PEERS := $(if $(BEFORE),$(READY),$(VENV)/.bench)
AGAINST := $(if $(BEFORE),--before $(BEFORE))

bench-views: $(PEERS)  ## augmentation compared with torchvision, lightly and kornia; with BEFORE=TREE, with that tree
	$(BIN)/python experiments/benchmarks/views.py $(AGAINST)

bench-step: $(PEERS)  ## a training step compared with lightly's and the released code's; or BEFORE=TREE
	OMP_NUM_THREADS=2 $(BIN)/python experiments/benchmarks/step.py --rows cpu --rounds 5 $(AGAINST)

bench-trees: $(READY)  ## our step in two checkouts, on a GPU: make bench-trees TREES="BEFORE ."
	$(BIN)/python $(lastword $(TREES))/experiments/benchmarks/step.py --before $(firstword $(TREES))

bench-scaling: $(READY)  ## what each part costs as it grows
	OMP_NUM_THREADS=1 $(BIN)/python experiments/benchmarks/scaling.py --device cpu --parts classes slots order stream step ranks

bench-data: $(READY)  ## decoding, cache and memory compared with a DataLoader; or BEFORE=TREE
	OMP_NUM_THREADS=1 $(BIN)/python experiments/benchmarks/data.py $(AGAINST)

bench-evaluate: $(READY)  ## transfer, few-shot and k-NN compared with reference loops; or BEFORE=TREE
	OMP_NUM_THREADS=2 $(BIN)/python experiments/benchmarks/evaluate.py $(AGAINST)

results: $(READY)  ## the tables of results in all pages, and their figures; ACCEPT=--accept also takes changed numbers
	$(BIN)/python -m experiments.evidence rows
	$(BIN)/python -m tests.test_golden_results $(ACCEPT)

dist: $(READY)  ## wheel and source archive in dist/, and a test of the wheel in a clean environment
	VENV=$(VENV) .ci/dist

lint: $(READY)  ## ruff
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .

typecheck: $(READY)  ## mypy --strict
	$(BIN)/mypy --strict src experiments/evidence

net: $(READY)  ## whether this tree computes what commit BASE computed, bit for bit
	$(BIN)/python tests/net.py $(BASE)

mutants: $(READY)  ## whether the tests notice small mistakes in the core: tests/mutants, about ten minutes
	$(BIN)/python -m tests.mutants

golden: $(READY)  ## update the golden losses, after a change that is meant to change them
	$(BIN)/python tests/golden.py

clean:  ## remove what was built, not what was trained
	rm -rf .venv .venv-oldest build dist .pytest_cache .mypy_cache .ruff_cache .hypothesis .coverage*
