# Every target sets up what it needs in $(VENV). It requires Python 3.11 or newer, make and a C++
# compiler; the build installs CMake and Ninja if the machine has none.

PYTHON ?= python3
VENV ?= .venv
MINUTES ?= 1
SEED ?= 0
JOBS ?= 4  # tests wait for a third of their time: four processes keep two cores busy

# Without bytecode each of the many processes of the tests would compile sley again.
export PYTHONDONTWRITEBYTECODE :=

BIN := $(VENV)/bin
# Python compiles what it imports; to compile every file of every package takes half a minute.
INSTALL := $(BIN)/python -m pip --quiet --disable-pip-version-check install --no-compile
NATIVE := $(shell find native -type f 2>/dev/null)
BUILD_INPUTS := pyproject.toml CMakeLists.txt $(NATIVE) \
	$(addprefix src/sley/engine/kernels/primitives/,float8.hpp half.hpp layout.hpp)

.DEFAULT_GOAL := help
.DELETE_ON_ERROR:
.PHONY: help demo test smoke slow fuzz work gpu peers lint types imports size docs picture update-golden check clean

help: ## list the targets
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "  make %-14s %s\n", $$1, $$2 }' Makefile

demo: $(VENV)/.runtime ## run an AllReduce between real processes on this machine
	@$(BIN)/sley run hierarchical-allreduce --nodes 2 --gpus 4 -b 1K -e 16M -f 4

test: $(VENV)/.dev ## run the tests; JOBS=N sets the number of processes
	@$(BIN)/python -m pytest --quiet -n $(JOBS) --dist worksteal $(PYTEST_ARGS)

smoke: $(VENV)/.smoke ## run the tests of languages, algorithms and proofs, in a minute, without PyTorch
	@$(BIN)/python -m pytest --quiet -n $(JOBS) $(addprefix tests/,lang ir algorithms verification) \
		$(PYTEST_ARGS)

slow: $(VENV)/.dev ## run all tests, including the slow ones, with 5000 random examples each
	@$(BIN)/python -m pytest --quiet -n $(JOBS) --dist worksteal -m "" --hypothesis-profile=slow $(PYTEST_ARGS)

fuzz: $(VENV)/.dev ## damage files of every format for MINUTES, from SEED on
	@$(BIN)/python tests/fuzz.py --minutes $(MINUTES) --seed $(SEED)

work: $(VENV)/.dev ## count the work of compiling, proving and simulating beside its records
	@$(BIN)/python benchmarks/work.py

gpu: $(VENV)/.dev ## test and measure kernels on this machine's GPU; results in benchmarks/results
	@$(BIN)/python benchmarks/on_gpu.py $(GPU_ARGS)

peers: $(VENV)/.dev ## measure against gloo, MPIs, oneCCL, vLLM and DeepSpeed; results in benchmarks/results
	@$(BIN)/python benchmarks/cpu_peers

lint: $(VENV)/.dev ## check style and formatting
	@$(BIN)/ruff check --quiet .
	@$(BIN)/ruff format --quiet --check . || \
		{ $(BIN)/ruff format --check . ; echo "To format: $(BIN)/ruff format ."; exit 1; }

types: $(VENV)/.dev ## check the types, also those of the code on pages
	@$(BIN)/mypy --no-error-summary
	@$(BIN)/python -m pytest --quiet -m "" tests/docs/test_types_of_pages.py

imports: $(VENV)/.dev ## check which room imports which
	@$(BIN)/lint-imports --no-logo

size: $(VENV)/.runtime ## print lines, words, rules and options beside the recorded numbers
	@$(BIN)/python .ci/size.py

# Not --quiet, with which mkdocs --strict ignores warnings.
docs: $(VENV)/.docs ## build the documentation into site/
	@$(BIN)/python docs/generate.py
	@NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --strict

picture: $(VENV)/.dev ## make the picture of a report again, with Chromium
	@PYTHONPATH=docs $(BIN)/python -c 'import report_picture; report_picture.write()'

update-golden: $(VENV)/.dev ## regenerate the expected files of the tests; review them with git diff
	@$(BIN)/python -m pytest --quiet --update-golden $(PYTEST_ARGS)

check: test work lint types imports size docs ## run all checks of CI

clean: ## remove the environment and everything built
	@rm -rf $(VENV) build dist site .mypy_cache .ruff_cache .pytest_cache .hypothesis \
		.import_linter_cache
	@find . -name __pycache__ -type d -prune -exec rm -rf {} +

# An editable install: Python files are used in place, and the native part is rebuilt when one of its
# inputs changes.
$(VENV)/.runtime: $(VENV)/.created $(BUILD_INPUTS)
	@echo "installing sley into $(VENV): compiling takes two minutes on 2 cores"
	@$(INSTALL) --editable .
	@touch $@

$(VENV)/.smoke: $(VENV)/.runtime
	@$(INSTALL) hypothesis pytest pytest-xdist scipy threadpoolctl
	@touch $@

# Only the tools of the extra `dev`: installing `.[dev]` would build the native part again.
$(VENV)/.dev: $(VENV)/.runtime
	@echo "installing the tools for development into $(VENV), 2 GB, in some minutes"
	@$(BIN)/python -c 'import tomllib; \
		project = tomllib.load(open("pyproject.toml", "rb"))["project"]; \
		print(*project["optional-dependencies"]["dev"], sep="\n")' > $@.txt
	@# A PyTorch without CUDA's packages, of 4 GB, where PyTorch's own index can be reached.
	@$(INSTALL) --retries 1 --extra-index-url https://download.pytorch.org/whl/cpu \
		"$$(grep '^torch[<>=]' $@.txt)"
	@$(INSTALL) --requirement $@.txt
	@# What the tests import is compiled here, once, and not by each of their processes.
	@$(BIN)/python -m pytest --collect-only --quiet > /dev/null || true
	@mv $@.txt $@

# A hundred megabytes that only the site needs, and the tests of it.
$(VENV)/.docs: $(VENV)/.dev
	@$(INSTALL) "mkdocs-material>=9.5"
	@touch $@

define NEEDS
import os, shutil, sys, sysconfig
from importlib.util import find_spec

version = "%d.%d" % sys.version_info[:2]
if sys.version_info < (3, 11):
    sys.exit("sley needs Python 3.11 or newer, and this is %s. Try: make PYTHON=python3.12" % version)
if not find_spec("ensurepip") or not find_spec("venv"):
    sys.exit("This Python cannot make virtual environments. Install its package for that"
             " (Debian, Ubuntu: python%s-venv) or name another with PYTHON=..." % version)
if not os.path.exists(os.path.join(sysconfig.get_paths()["include"], "Python.h")):
    sys.exit("This Python has no headers (Python.h). Install its development package"
             " (Debian, Ubuntu: python%s-dev; Fedora: python3-devel)" % version)
if not any(map(shutil.which, [os.environ.get("CXX", "c++").split()[0], "g++", "clang++"])):
    sys.exit("sley needs a C++17 compiler. Install one (Debian, Ubuntu: g++; Fedora: gcc-c++)"
             " or name it with CXX=...")
endef
export NEEDS

$(VENV)/.created:
	@command -v $(PYTHON) > /dev/null || \
		{ echo "There is no $(PYTHON). Name a Python 3.11 or newer with PYTHON=..."; exit 1; }
	@$(PYTHON) -c "$$NEEDS"
	@$(PYTHON) -m venv $(VENV)
	@touch $@
