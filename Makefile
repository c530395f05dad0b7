# Two commands: `make demo` sets up and runs the main job, `make test` sets up and tests.
# On a CUDA machine: make demo TARGET=cuda, and make gpu.
# Looked for once, when it is first asked for.
PYTHON ?= $(eval PYTHON := $(shell requirements/python.sh))$(PYTHON)
VENV := .venv
BIN := $(VENV)/bin
# cpu or cuda: by default what .venv was made for.
MADE_FOR := $(or $(shell cat $(VENV)/target 2>/dev/null),cpu)
TARGET ?= $(MADE_FOR)

# The system's pip installs into the venv, which needs none of its own (Debian's bare
# python3.11 cannot make one with it).
PIP := $(PYTHON) -m pip --python $(BIN)/python --disable-pip-version-check
# All the tests import a third of these 15,000 modules, which are compiled then, once.
INSTALL := $(PIP) install --quiet --no-compile --no-deps
LOCK := requirements/$(TARGET).txt
# The CPU build of torch lies on PyTorch's own index, which has a hash for each Python; where that is
# out of reach, pip goes on with what the usual index and find-links have. The rest, and all of
# CUDA's, is what PyPI has: pip refuses a file whose hash is not in the lock.
TORCH_cpu = $(INSTALL) --retries 1 --timeout 30 \
	--extra-index-url https://download.pytorch.org/whl/cpu $(shell grep -o '^torch=[^ ]*' $(LOCK))
TORCH_cuda = $(INSTALL) --require-hashes -r $(VENV)/torch.txt
# One pip unpacks on one core: every second package of the lock is left to another.
define LOCKED
	awk '/^[^ #]/ {of = /^torch=/ ? "torch" : ++n % 2} of != "" {print >("$(VENV)/" of ".txt")}' $(LOCK)
	( $(TORCH_$(TARGET)) && $(INSTALL) --require-hashes -r $(VENV)/0.txt ) & \
		$(INSTALL) --require-hashes -r $(VENV)/1.txt; other=$$?; wait $$! && exit $$other
endef

# How many, and that whole programs come first, so that no long file is left to one: tests/conftest.py.
WORKERS := -n auto --dist loadfile --no-loadscope-reorder

# Instruction sets and threads, each of which rounds otherwise.
ROUNDINGS := ATEN_CPU_CAPABILITY=default ATEN_CPU_CAPABILITY=avx2 \
	MKL_ENABLE_INSTRUCTIONS=SSE4_2 MKL_ENABLE_INSTRUCTIONS=AVX2 ONEDNN_MAX_CPU_ISA=AVX2 \
	MKL_CBWR=COMPATIBLE OMP_NUM_THREADS=1 OMP_NUM_THREADS=2
# What numpy and the C library compute is in plans, forecasts and data that is drawn, not in trainings.
ELSEWHERE := GLIBC_TUNABLES=glibc.cpu.hwcaps=-AVX2,-FMA OPENBLAS_CORETYPE=Nehalem \
	NPY_DISABLE_CPU_FEATURES=X86_V3,X86_V4,AVX512_ICL,AVX512_SPR
CLOSE = $(shell grep -rlE "approx|allclose|assert_close" tests --include="test_*.py")
PARITY = $(shell grep -rlE "check_parity|reference_of|plain_of|row_wise_of" tests --include="test_*.py")

# Hundreds of processes of the tests import the same modules: they are compiled once.
unexport PYTHONDONTWRITEBYTECODE

.PHONY: another-target demo gpu test test-fast test-ranks test-examples test-docs test-rounding mutants docs nightly package tried lint test-cuda-lock test-torch clean

demo: $(VENV)/ready
	$(if $(filter cuda,$(TARGET)),$(BIN)/python -m recd_plugins.compat.build cuda)
	$(BIN)/python -m benchmarks.demo
	$(if $(filter cuda,$(TARGET)),@echo "make gpu tells whether each path of CUDA is right and how fast it is")

# All that a GPU can show, in ten minutes: kept in a dated file of benchmarks/results.
gpu:
	$(MAKE) TARGET=cuda $(VENV)/ready
	$(BIN)/python -m benchmarks.gpu $(if $(PART),--part $(PART))

test: $(VENV)/ready
	$(BIN)/python -m pytest $(WORKERS)

# Without ranks, without servers, without processes that train: what to run after every change. Two folders have
# whole programs alone (tests/conftest.py), and are not imported to find that out.
test-fast: $(VENV)/ready
	$(BIN)/python -m pytest $(WORKERS) --hypothesis-profile=fast -m "not ranks and not slow" \
		--ignore=tests/benchmarks --ignore=tests/examples

test-ranks: $(VENV)/ready
	$(BIN)/python -m pytest $(WORKERS) -m "ranks and not slow"

# Whole programs: examples, benchmarks, jobs that are started, killed and resumed.
test-examples: $(VENV)/ready
	$(BIN)/python -m pytest $(WORKERS) -m slow

test-docs: $(VENV)/ready
	$(BIN)/python -m pytest tests/docs tests/host/test_surface.py

# Parity on machines of other instruction sets, as far as this one can stand for them; and what has a tolerance.
test-rounding: $(VENV)/ready
	set -e; for rounding in $(ROUNDINGS); do \
		$(BIN)/python tests/rounded.py $$rounding; \
		env $$rounding $(BIN)/python -m pytest -q $(WORKERS) $(PARITY); \
	done
	$(BIN)/python tests/rounded.py $(ELSEWHERE)
	env $(ELSEWHERE) $(BIN)/python -m pytest -q $(WORKERS) -m "not ranks and not slow" $(CLOSE)

lint: $(VENV)/ready
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	@# Its workers have three seconds to start, or it ends with 2; on a machine that is too slow or too
	@# busy for that, one process does it all.
	$(BIN)/mypy --num-workers auto || { test $$? = 2 && $(BIN)/mypy; }
	$(BIN)/lint-imports

$(VENV)/ready: $(LOCK) pyproject.toml $(if $(filter $(TARGET),$(MADE_FOR)),,another-target)
	@test -n "$(PYTHON)" || { echo "There is no python3.13, python3.12 or python3.11 with venv and \
	pip here. Debian has them as python3.11, python3-venv and python3-pip; make PYTHON=PATH \
	names another Python." >&2; exit 1; }
	$(PYTHON) -m venv --clear --without-pip $(VENV)
	$(LOCKED)
	$(INSTALL) --no-build-isolation --editable .
	@# 3: all is installed, and loads, and compiles its kernels, where NVIDIA's driver is.
	$(BIN)/python -m recd_plugins.compat.build $(TARGET) \
		&& $(BIN)/python -m recd_plugins.data.compiled || test $$? = 3
	echo $(TARGET) >$(VENV)/target
	touch $@

# The tests under the CUDA lock, on a machine without a GPU: 8 GB of downloads.
test-cuda-lock:
	PYTHON=$(PYTHON) requirements/cuda_on_cpu.sh $(WORKERS)

# The tests under another torch than the lock's: make test-torch TORCH=2.11.0. 3 GB of downloads.
test-torch:
	PYTHON=$(PYTHON) requirements/other_torch.sh $(TORCH) $(WORKERS)

# Which small changes of a file its tests do not notice: make mutants FILE=src/... MOST=100.
mutants: $(VENV)/mutants
	$(BIN)/python -m benchmarks.mutants $(FILE) $(if $(MOST),--most $(MOST))

$(VENV)/mutants: requirements/mutants.txt $(VENV)/ready
	$(INSTALL) --require-hashes -r requirements/mutants.txt
	touch $@

# The documentation as a site, in build/site; search works there without a network.
docs: $(VENV)/docs
	$(BIN)/python docs/site_of_docs.py

$(VENV)/docs: requirements/docs.txt $(VENV)/ready
	$(INSTALL) --require-hashes -r requirements/docs.txt
	touch $@

# Wheel and sdist, each tried in an environment that has the lock alone, where nothing of the
# repository can be imported.
package: $(VENV)/ready
	rm -rf dist build/package
	$(BIN)/python -m hatchling build -d dist
	$(MAKE) build/package/.venv/lock VENV=build/package/.venv
	set -e; for made in dist/*.whl dist/*.tar.gz; do $(MAKE) tried VENV=build/package/.venv MADE=$$made; done

tried:
	$(INSTALL) --no-build-isolation --force-reinstall $(MADE)
	rm -rf build/package/trial && mkdir build/package/trial
	cp examples/random.yaml build/package/trial
	cd build/package/trial && export PATH="$$PWD/../.venv/bin:$$PATH" && unset PYTHONPATH \
		&& recd doctor -r random.yaml && recd train -r random.yaml dataset.samples=4_000 train.steps=10 \
		&& recd plugins new mine && recd explain "dedupe factor" && recd scars curve --help

$(VENV)/lock:
	$(PYTHON) -m venv --clear --without-pip $(VENV)
	$(LOCKED)

# The newest nightly builds of the trio in place of the lock's, to see what is about to break.
nightly: $(VENV)/ready
	$(PIP) uninstall --yes fbgemm_gpu-cpu
	$(INSTALL) --upgrade --pre \
		--index-url https://download.pytorch.org/whl/nightly/cpu torch fbgemm-gpu torchrec

clean:
	rm -rf $(VENV) data runs
