# Every target sets up what it needs, in ./.venv or an environment over it, and is quick the second time.
#
#   make demo [QUICK=1]   the main job on real data: train, kill, resume, prove it
#   make test             the tests that a change has to pass; TESTS=tests/laws or PYTEST_ARGS='-k resume' narrow them; PYTHON=python3.13; FEEDLINE_PORTABLE=1
#   make frameworks       tests that need other people's frameworks: Ray, Lightning, transformers, datasets, moto ...
#   make kill             a training killed at 20 random instants, each time ended as the one that never stopped
#   make torture          kills, damage, shortages and races for MINUTES=10; SEED=n and CASE=name/n repeat what it found
#   make prove            the tests of torch's DataLoader that ours has to pass, through torch's own too
#   make check            ruff, mypy --strict, import contracts, stub check
#   make bench            benchmarks, compared with peers; prints a table, writes benchmarks/results/
#   make bench-peers      eleven libraries in an environment of their own, each in its own format; QUICK=1, ONLY='text'
#   make sanitize         native kernels' tests and a short fuzz under ASan and UBSan
#   make cross            native kernels without what only Linux has, for aarch64 under qemu; compiled for macOS arm64
#   make fuzz             ten minutes of fuzzing CTF, five of CBF, MLF, JSON, CSV, gzip, JPEG, some of tar, TFRecord, RecordIO, statistics
#   make docs             the site: build/site/index.html; a link that leads nowhere is an error
#   make wheel            dist: manylinux wheels and an sdist, checked; tests and the README run from wheels, pages for aarch64 under qemu
#   make extras           each extra in an environment of its own, with its page, and tests that need it; EXTRAS='cli zarr'
#   make clean            remove everything built (not .venv)
SHELL := /bin/bash
.SHELLFLAGS := -euo pipefail -c
.DELETE_ON_ERROR:
.DEFAULT_GOAL := test
.PHONY: demo test frameworks kill torture prove check bench bench-peers sanitize cross fuzz docs wheel extras clean

PYTHON ?= $(firstword $(foreach p,python3.11 python3.12 python3.13 python3,$(shell command -v $(p) 2>/dev/null)))
ifneq ($(shell $(PYTHON) -c 'import sys; print(sys.version_info >= (3, 11))' 2>&1),True)
$(error expected Python 3.11 or later as python3; on Debian, run: apt-get install python3 python3-venv, elsewhere name \
one by `make ... PYTHON=python3.12`)
endif
# One environment for each Python that is asked for: `make test PYTHON=python3.13` leaves .venv as it is.
VENV := $(if $(filter command,$(firstword $(origin PYTHON))),.venv-$(notdir $(PYTHON)),.venv)
# `FEEDLINE_PORTABLE=1 make test` does without what only Linux has, with a core of its own.
VENV := $(VENV)$(if $(filter 1,$(FEEDLINE_PORTABLE)),-portable)
BIN := $(VENV)/bin
ENVIRONMENT := @$(PYTHON) tools/environment.py
NATIVE := $(shell find native -type f 2>/dev/null) CMakeLists.txt
TESTS ?= tests
# Four at a time on two cores: many tests wait for processes, and for each other's time limits. A file's tests stay
# together, as they share what they started; files come in the order of tests/conftest.py.
PYTEST_ARGS ?= -n 4 --dist loadfile --no-loadscope-reorder
FUZZ_SECONDS ?= 600
MINUTES ?= 10
# Hundreds of programs are started by tests: none should compile what another one has compiled.
export PYTHONDONTWRITEBYTECODE :=
# Everything prints without colour codes when nobody looks at a terminal.
export PYTHONUNBUFFERED := 1

$(VENV)/.packages: pyproject.toml constraints.txt tools/environment.py
	$(ENVIRONMENT) $(VENV) core demo
	@touch $@

# The demo needs no more. Everything else runs over this environment, and its packages are not installed twice.
$(VENV)/.core: $(VENV)/.packages $(NATIVE)
	$(ENVIRONMENT) $(VENV) --core
	@touch $@

# Tests are compiled here, once, and not by each of the processes that run them.
$(VENV)/.test: $(VENV)/.core
	$(ENVIRONMENT) $(VENV) test
	@echo "compiling the tests"
	@$(BIN)/python -m pytest tests --collect-only -qq > /dev/null
	@touch $@

$(VENV)-check/.packages: $(VENV)/.core
	$(ENVIRONMENT) $(VENV)-check --over $(VENV) check
	@touch $@

$(VENV)-frameworks/.packages: $(VENV)/.test
	$(ENVIRONMENT) $(VENV)-frameworks --over $(VENV) frameworks
	@touch $@

$(VENV)-docs/.packages: pyproject.toml constraints.txt
	$(ENVIRONMENT) $(VENV)-docs docs
	@touch $@

$(VENV)-release/.packages: pyproject.toml constraints.txt
	$(ENVIRONMENT) $(VENV)-release release
	@touch $@

$(VENV)-cross/.packages: pyproject.toml constraints.txt
	$(ENVIRONMENT) $(VENV)-cross cross
	@touch $@

demo: $(VENV)/.core
	$(BIN)/feedline demo $(if $(QUICK),--quick) --out demo-out

test: $(VENV)/.test
	$(BIN)/python -m pytest $(TESTS) $(PYTEST_ARGS) -m "not frameworks"

frameworks: $(VENV)-frameworks/.packages
	$(VENV)-frameworks/bin/python -m pytest $(TESTS) $(PYTEST_ARGS) -m frameworks

kill: $(VENV)/.test
	FEEDLINE_KILLS=20 $(BIN)/python -m pytest tests/train/test_session.py::test_killed_anywhere_it_ends_the_same --timeout 900

# Planted defects first: every scenario has to find its own. With this seed damage soon meets what only a checksum tells.
torture: $(VENV)-frameworks/.packages
	$(if $(CASE)$(ONLY),,$(VENV)-frameworks/bin/python -m tests.torture --plants --seed 4)
	$(VENV)-frameworks/bin/python -m tests.torture --minutes $(MINUTES) $(if $(SEED),--seed $(SEED)) $(if $(CASE),--case $(CASE)) \
	    $(if $(ONLY),--only $(ONLY))

prove: $(VENV)/.test
	FEEDLINE_PROVE=1 $(BIN)/python -m pytest tests/feed/loader

check: $(VENV)-check/.packages
	$(VENV)-check/bin/ruff check .
	$(VENV)-check/bin/ruff format --check .
	$(VENV)-check/bin/mypy
	$(VENV)-check/bin/lint-imports
	$(BIN)/python tools/check_stub.py
	$(BIN)/python tools/sizes.py

bench: $(VENV)-frameworks/.packages
	$(VENV)-frameworks/bin/python -m benchmarks

# Apart from .venv: several peers contradict constraints.txt. Nothing but Python is needed to begin with.
PEERS := build/peers-venv

$(PEERS)/.peers: constraints-peers.txt benchmarks/peers/install.py
	@echo "installing feedline's peers into $(PEERS): some minutes, once"
	$(PYTHON) -m benchmarks.peers.install $(PEERS)
	touch $@

# What is measured is this checkout, as it would be installed.
$(PEERS)/.installed: $(PEERS)/.peers pyproject.toml $(NATIVE) $(shell find src examples/demo -name '*.py' -o -name '*.pyi')
	$(PYTHON) -m benchmarks.peers.install $(PEERS) feedline
	touch $@

bench-peers: $(PEERS)/.installed
	$(PEERS)/bin/python -m benchmarks.peers $(if $(QUICK),--quick) $(if $(ONLY),--only $(ONLY))

sanitize:
	cmake -S . -B build/sanitize -DFEEDLINE_SANITIZE=ON -DFEEDLINE_NATIVE_TESTS=ON -DCMAKE_BUILD_TYPE=Debug > /dev/null
	cmake --build build/sanitize -j 2
	ctest --test-dir build/sanitize --output-on-failure

# Nothing is run for macOS.
CROSS = cmake -S . --toolchain native/zig.cmake -DFEEDLINE_NATIVE_TESTS=ON \
    -DFEEDLINE_ZIG=$$($(VENV)-cross/bin/python -c 'import ziglang; print(*ziglang.__path__)')/zig
cross: $(VENV)-cross/.packages
	@command -v qemu-aarch64-static > /dev/null || \
	    { echo "expected qemu-aarch64-static, got none; on Debian, run: apt-get install qemu-user-static"; exit 1; }
	cmake -S . -B build/portable -DFEEDLINE_PORTABLE=ON -DFEEDLINE_NATIVE_TESTS=ON > /dev/null
	cmake --build build/portable -j 2
	ctest --test-dir build/portable --output-on-failure
	$(CROSS) -B build/cross-aarch64 -DFEEDLINE_TARGET=aarch64-linux-musl > /dev/null
	cmake --build build/cross-aarch64 -j 2
	ctest --test-dir build/cross-aarch64 --output-on-failure
	$(CROSS) -B build/cross-macos -DFEEDLINE_TARGET=aarch64-macos > /dev/null
	cmake --build build/cross-macos -j 2 --target feedline_core

fuzz: sanitize
	build/sanitize/fuzz_ctf $(FUZZ_SECONDS)
	build/sanitize/test_cntk_formats $$(($(FUZZ_SECONDS) / 2))
	build/sanitize/test_rows $$(($(FUZZ_SECONDS) / 2))
	build/sanitize/test_pictures $$(($(FUZZ_SECONDS) / 2))
	build/sanitize/test_tar $$(($(FUZZ_SECONDS) / 4))
	build/sanitize/test_tfrecord $$(($(FUZZ_SECONDS) / 4))
	build/sanitize/test_recordio $$(($(FUZZ_SECONDS) / 4))
	build/sanitize/test_statistics $$(($(FUZZ_SECONDS) / 4))

docs: $(VENV)-docs/.packages
	NO_MKDOCS_2_WARNING=1 $(VENV)-docs/bin/mkdocs build

# 3.11 makes wheels for itself, a later Python makes those for all after 3.11. One that does not start is no Python.
WHEEL_PYTHONS ?= $(foreach p,python3.11 $(firstword $(foreach p,python3.12 python3.13,$(shell $(p) -c 'print("$(p)")' 2>/dev/null))),$(p))

# The sdist is built first, and the wheels from it, in environments with nothing but what it declares.
dist/.made: $(VENV)-release/.packages tools/wheels.py $(NATIVE) pyproject.toml README.md $(shell find src examples/demo -name '*.py' -o -name '*.pyi')
	$(if $(word 2,$(WHEEL_PYTHONS)),,$(error expected Python 3.11 and 3.12 or 3.13 for wheels, got $(WHEEL_PYTHONS); name \
	  them by `make wheel WHEEL_PYTHONS="/path/of/python3.11 /path/of/python3.12"`))
	rm -rf dist
	PIP_CONSTRAINT=$(CURDIR)/constraints.txt $(VENV)-release/bin/python -m build --sdist -o dist
	PATH=$(CURDIR)/$(VENV)-release/bin:$$PATH PIP_CONSTRAINT=$(CURDIR)/constraints.txt \
	    $(VENV)-release/bin/python tools/wheels.py dist $(WHEEL_PYTHONS)
	$(VENV)-release/bin/twine check --strict dist/*.whl dist/*.tar.gz
	$(VENV)-release/bin/python tools/check_dist.py dist
	touch $@

wheel: $(VENV)/.test dist/.made
	rm -rf build/wheel && mkdir -p build/wheel
	$(BIN)/python tools/wheel_venv.py build/wheel dist
	cp -r tests pyproject.toml *.md docs build/wheel/
	$(VENV)-release/bin/python tools/wheel_emulated.py dist
	cd build/wheel && env -u PYTHONPATH venv/bin/python -m pytest $(TESTS) $(PYTEST_ARGS) -m "not frameworks"
	for python in $(WHEEL_PYTHONS); do $$python tools/extras.py dist torch; done

extras: $(VENV)/.test dist/.made
	$(BIN)/python tools/extras.py dist $(EXTRAS)

clean:
	rm -rf build dist demo-out .pytest_cache .mypy_cache .ruff_cache .hypothesis src/feedline/_native/*.so
	find . -name __pycache__ -not -path './.venv*/*' -exec rm -rf {} +
