# Two commands: `make demo` sets up and runs the main job, `make test` sets up and tests.
# On a CUDA machine: make demo TARGET=cuda.
PYTHON ?= python3.11
TARGET ?= cpu
VENV := .venv
BIN := $(VENV)/bin

# The system's pip installs into the venv, which needs none of its own (Debian's bare
# python3.11 cannot make one with it).
PIP := $(PYTHON) -m pip --python $(BIN)/python --disable-pip-version-check
# The CPU build of torch lies on PyTorch's own index; where that is out of reach, pip goes on
# with what the usual index and find-links have.
INDEX_cpu := --extra-index-url https://download.pytorch.org/whl/cpu
LOCK := requirements/$(TARGET).txt

.PHONY: demo test lint clean

demo: $(VENV)/ready
	$(BIN)/python -m benchmarks.demo

test: $(VENV)/ready
	$(BIN)/python -m pytest -n 2 --dist loadfile

lint: $(VENV)/ready
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/mypy
	$(BIN)/lint-imports

$(VENV)/ready: $(LOCK) pyproject.toml
	$(PYTHON) -m venv --clear --without-pip $(VENV)
	$(PIP) install --quiet --no-deps --retries 1 --timeout 30 $(INDEX_$(TARGET)) \
		"$(shell grep '^torch=' $(LOCK))"
	$(PIP) install --quiet --no-deps -r $(LOCK)
	$(PIP) install --quiet --no-deps --no-build-isolation --editable .
	touch $@

clean:
	rm -rf $(VENV) data runs
