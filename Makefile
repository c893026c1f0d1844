# setup, test, test-trainers, demo, bench: each works alone in a fresh clone with Python >= 3.10 and make.
#
#   PYTHON=python3.12        the interpreter that .venv is made from
#   JOBS=8                   pytest processes
#   SECONDS=600              of `make fuzz`
#   MUTANTS=300              of `make mutants`
#   BASE=main                the revision that `make lint` compares the sizes with
#   NAMES="trl lightning"    environments of `make trainers`
#   TARGET=aarch64           the processor that `make wheel` and `make kernels` build for; by default this machine's
#   CONSTRAINTS=             (empty) ignore the pins; or another file of pins
# pip's own variables work as ever: PIP_NO_INDEX=1 PIP_FIND_LINKS=wheels/ installs without a network.

PYTHON ?= python3
JOBS ?= 2
SECONDS ?= 300
MUTANTS ?= 300
VENV := .venv
BENCH_VENV := .venv-bench

# Images of containers set it, and then each process of a test compiles all modules again.
unexport PYTHONDONTWRITEBYTECODE

# py311 for Python 3.11, and so on. An existing .venv keeps the Python that it was made from.
tag = $(shell $(1) -c 'import sys; print("py%d%d" % sys.version_info[:2])')
CONSTRAINTS ?= constraints/$(call tag,$(or $(wildcard $(VENV)/bin/python),$(PYTHON))).txt

# pip shows its progress on a terminal, and is quiet in CI and in pipes.
PIP_FLAGS := --disable-pip-version-check $(if $(CI),-q,$(if $(MAKE_TERMOUT),,-q))
# The venv's own setuptools builds the project (no build isolation): with every pin satisfied pip asks no index at all.
# Modules are compiled when they are first imported, which most of torch, sympy and transformers never are: 0.2 GB less.
INSTALL = -m pip install --no-compile $(PIP_FLAGS) $(if $(CONSTRAINTS),-c $(CONSTRAINTS))

# What compiles the kernels, and links them where the machine has no linker.
NUMBA := $(shell sed -n 's/.*"\(numba==[0-9.]*\)".*/\1/p' pyproject.toml)
ZIG := $(shell sed -n 's/.*"\(ziglang==[0-9.]*\)".*/\1/p' setup.py)
LINKER := $(if $(shell for name in cc gcc clang ld; do command -v $$name; done),,$(ZIG))
FOREIGN := $(if $(filter-out $(shell uname -m),$(TARGET)),zig)

.PHONY: setup kernels wheel zig arm dist browser test test-trainers soak fuzz mutants lint types rules format demo docs bench trainers constraints clean

setup: $(VENV)/.stamp-test

# .stamp-X: the extra X is installed. What the tests of trainers need includes what other tests and the demo need.
$(VENV)/.stamp-%: setup.py pyproject.toml $(CONSTRAINTS) $(wildcard conceptloader/kernels/*.py)
	test -x $(VENV)/bin/python || $(PYTHON) -m venv $(VENV)
	$(VENV)/bin/python $(INSTALL) setuptools wheel $(NUMBA) $(LINKER)
	$(VENV)/bin/python $(INSTALL) --no-build-isolation -e '.[$*]'
	touch $@ $(if $(filter test-trainers,$*),$(VENV)/.stamp-test $(VENV)/.stamp-demo)

# After an edit of conceptloader/kernels; nothing is compiled that is there.
kernels: setup $(FOREIGN)
	CONCEPTLOADER_TARGET=$(TARGET) $(VENV)/bin/python -m conceptloader.kernels.build

wheel: setup $(FOREIGN)
	CONCEPTLOADER_TARGET=$(TARGET) $(VENV)/bin/python -m pip wheel --disable-pip-version-check -q --no-deps --no-build-isolation -w dist .

# Links for other processors; a wheel of 100 MB.
zig: setup
	$(VENV)/bin/python $(INSTALL) $(ZIG)

# The kernels for aarch64 and the tests that docs/versions.md names, by qemu on Debian: the first time a gigabyte is fetched.
arm: zig
	$(VENV)/bin/python -m tests.arm.run

# What is published, from the last commit: built twice, checked, and tried.
dist: zig
	$(VENV)/bin/python $(INSTALL) twine
	$(VENV)/bin/python -m tests.packaging.dist

constraints/py%.txt:
	$(error there is no $@: use PYTHON=python3.11, or CONSTRAINTS= to install without pins)

lint: setup
	+$(MAKE) --no-print-directory -O -j2 types rules

types:
	$(VENV)/bin/mypy

rules:
	$(VENV)/bin/ruff check .
	$(VENV)/bin/ruff format --check .
	$(VENV)/bin/python -m tests.house.vocabulary
	$(VENV)/bin/python -m tests.house.messages
	$(VENV)/bin/python -m tests.house.size $(BASE)
	rm -rf build/layers
	$(VENV)/bin/python setup.py -q build_py -d build/layers
	cd build/layers && ../../$(VENV)/bin/lint-imports --config ../../setup.cfg --no-cache --no-logo

# What `make docs` looks at pages with. Where it cannot be installed, its tests fail and say what is missing.
BROWSER := chromium chromium-driver
browser:
	command -v chromium > /dev/null && command -v chromedriver > /dev/null || \
	    { SUDO=$$(test $$(id -u) = 0 || echo "sudo -n"); \
	      $$SUDO apt-get update -qq && $$SUDO apt-get install -qq -y --no-install-recommends $(BROWSER); } || \
	    echo "no chromium: tests of the page will fail; install it (on Debian: apt-get install $(BROWSER))" >&2

test: lint
	@$(VENV)/bin/python --version
	$(VENV)/bin/pytest -n $(JOBS) --dist worksteal

# Those that `make test` skips for want of Lightning and datasets, which it installs.
test-trainers: $(VENV)/.stamp-test-trainers
	$(VENV)/bin/pytest -n $(JOBS) --dist worksteal tests/trainers tests/entries tests/demo \
	    tests/docs/test_code_blocks.py tests/docs/test_losses.py tests/ingest/test_chat.py

# The long forms of the tests of crashes, faults, damage and schedules: an hour or two on two cores.
soak: setup
	$(VENV)/bin/python $(INSTALL) ray
	CONCEPTLOADER_SOAK=1 nice $(VENV)/bin/pytest -n $(JOBS) -m soak --timeout 3600

# Mutated input for everything that reads; what it finds is an error of ours, a crash, a hang or a wrong array.
fuzz: setup
	CONCEPTLOADER_FUZZ_SECONDS=$(SECONDS) $(VENV)/bin/pytest -n 1 --timeout 36000 tests/hostile/test_fuzz.py

# How many random changes of the product its tests notice. Hours.
mutants: setup
	nice $(VENV)/bin/python -m tests.mutants.run --count $(MUTANTS) --jobs $(JOBS)

format: setup
	$(VENV)/bin/ruff check --fix .
	$(VENV)/bin/ruff format .

demo: $(VENV)/.stamp-demo
	$(VENV)/bin/python examples/demo/run.py

# The pages of docs/ as a site in build/site, with a reference of every public name; it and the pages of --html in a browser.
docs: setup $(VENV)/.stamp-docs browser
	NO_MKDOCS_2_WARNING=1 $(VENV)/bin/mkdocs build --strict
	$(VENV)/bin/pytest -m browser tests/docs tests/view

# The peers' pins contradict each other: they go in without their dependencies, which are listed apart.
$(BENCH_VENV)/.stamp: setup.py pyproject.toml benchmarks/requirements.txt benchmarks/requirements-deps.txt
	test -x $(BENCH_VENV)/bin/python || $(PYTHON) -m venv $(BENCH_VENV)
	$(BENCH_VENV)/bin/python -m pip install $(PIP_FLAGS) -r benchmarks/requirements-deps.txt -e '.[fast]'
	$(BENCH_VENV)/bin/python -m pip install $(PIP_FLAGS) --no-deps -r benchmarks/requirements.txt
	touch $@

bench: $(BENCH_VENV)/.stamp
	$(BENCH_VENV)/bin/python benchmarks/run.py

# An environment for each line of docs/versions.md, or for NAMES, its tests, and the page of what they found.
trainers: setup
	$(VENV)/bin/python -m tests.versions.run $(NAMES); found=$$?; $(VENV)/bin/python -m tests.versions.page --write; exit $$found

# Pins for $(PYTHON), resolved afresh. CUDA packages follow from torch's own pins, so the files serve CPU and CUDA builds.
# numpy 2.5's type stubs need Python 3.12 syntax, which mypy refuses for our floor of 3.10.
constraints: TMP := $(shell mktemp -d)
constraints:
	$(PYTHON) -m venv $(TMP)
	$(TMP)/bin/python -m pip install $(PIP_FLAGS) -U setuptools wheel
	$(TMP)/bin/python -m pip install $(PIP_FLAGS) --no-build-isolation '.[test-trainers,docs]' 'numpy<2.5'
	$(TMP)/bin/python -m pip freeze --all --exclude conceptloader --exclude pip \
	    | sed 's/+cpu$$//' | grep -vE '^(nvidia-|cuda-|triton)' > constraints/$(call tag,$(PYTHON)).txt
	rm -r $(TMP)

clean:
	rm -rf $(VENV) $(BENCH_VENV) .venv-trainers build dist *.egg-info
