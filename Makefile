# `make demo` shows what calibration changes, `make test` runs the tests. Both set up .venv.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
# OpenMP threads spin at barriers by default: on a busy machine that is 8 times slower than waiting.
export OMP_WAIT_POLICY ?= passive
export TOKENIZERS_PARALLELISM ?= false
# One process a core, four at most, each with the tests of whole files: their fixtures are made once.
PYTEST := $(BIN)/python -m pytest -n logical --maxprocesses 4 --dist loadfile

# Installs something, with a line now and then: pip says nothing while it unpacks.
pip = @echo "pip install $(1)"; \
	while sleep 25 >/dev/null && kill -0 $$$$; do echo "pip is still at work"; done 2>/dev/null & trap "kill $$!" EXIT; \
	$(BIN)/python -m pip install -c constraints.txt $(1)

.PHONY: help demo test test-slow check size docs picture notebooks bench claims clean

help:
	@echo "make demo        calibrate the built-in encoder on built-in text, show the improvement (a few minutes)"
	@echo "make test        run the tests"
	@echo "make test-slow   run the long ones too: real encoders, several processes"
	@echo "make check       ruff, mypy, import layers, dead code, counts of operators and bytes, size"
	@echo "make size        lines and tokens of each room of the package, against their budgets"
	@echo "make docs        build the site, strictly and offline, into build/site"
	@echo "make picture     draw the picture of the README again"
	@echo "make notebooks   run examples/*.ipynb again, and keep their outputs and pictures"
	@echo "make bench       measure the speed, as ratios within one run, written to benchmarks/results.json and docs/results/speed.md"
	@echo "make claims      check what papers and tutorials say about such embeddings"

# One stamp an extra: $(VENV)/.demo, $(VENV)/.test
$(VENV)/.%: pyproject.toml constraints.txt
	@echo "Setting up $(VENV) for \"make $*\" with pip, once: downloads 0.5 GB or more, which takes minutes."
	test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	$(call pip,torch)
	$(call pip,-e '.[$*]')
	touch $@

demo: $(VENV)/.demo
	$(BIN)/bertflow demo

test: $(VENV)/.test
	@echo "Running the tests on the cores of this machine, four at most: some ten minutes on two. A dot is a test."
	HF_HUB_OFFLINE=1 OMP_NUM_THREADS=1 $(PYTEST)

test-slow: $(VENV)/.test
	@echo "Running all tests, the long ones too, which takes several times as long. A dot is a test."
	HF_HUB_OFFLINE=1 OMP_NUM_THREADS=1 $(PYTEST) --slow

check: $(VENV)/.test
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports
	$(BIN)/vulture
	HF_HUB_OFFLINE=1 $(BIN)/python benchmarks/counts.py
	$(BIN)/python benchmarks/size.py

size: $(VENV)/.test
	$(BIN)/python benchmarks/size.py

docs: $(VENV)/.docs
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --strict

picture: $(VENV)/.test
	HF_HUB_OFFLINE=1 $(BIN)/python benchmarks/picture.py

notebooks: $(VENV)/.test
	$(BIN)/python examples/make.py

bench: $(VENV)/.test
	HF_HUB_OFFLINE=1 $(BIN)/python benchmarks/bench.py

claims: $(VENV)/.test
	HF_HUB_OFFLINE=1 $(BIN)/python benchmarks/claims.py

clean:
	rm -rf $(VENV) build dist
