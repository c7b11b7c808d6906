# Everything runs in .venv; PYTHON names the interpreter that it is made from.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
VLLM := .venv-vllm
INSTALLED := $(VENV)/.installed
PYTEST_ARGS ?=

.PHONY: install model demo test test-slow test-vllm lint dist clean

install: $(INSTALLED)

$(INSTALLED): pyproject.toml constraints.txt
	test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install -c constraints.txt -e ".[dev,report,train,scale]"
	$(BIN)/python -m pip install --no-deps hydra-ray-launcher==1.2.2  # docs/scale.md says why
	touch $@

# Fetches and converts the embedded model, or checks every byte of it.
model: $(INSTALLED)
	$(BIN)/python -m stepsearch.policies.embedded

demo: model
	$(BIN)/python examples/demo.py

test: $(INSTALLED)
	$(BIN)/python -m pytest -m "not slow and not vllm" $(PYTEST_ARGS)

test-slow: $(INSTALLED)
	$(BIN)/python -m pytest -m "slow and not vllm" $(PYTEST_ARGS)

# vLLM asks for versions of its own, so it has an environment of its own.
$(VLLM)/.installed: pyproject.toml requirements-vllm.txt
	test -x $(VLLM)/bin/python || $(PYTHON) -m venv $(VLLM)
	$(VLLM)/bin/python -m pip install --no-deps --no-compile -r requirements-vllm.txt
	$(VLLM)/bin/python -m pip install --no-deps --no-compile --no-build-isolation -e .
	$(VLLM)/bin/python -c "import torch" || { echo "torch must be a CPU build: let pip find one"; exit 1; }
	touch $@

# vLLM's libraries warn of each other while they load. Engines are many processes: bytecode, which
# --no-compile leaves out, must be kept once they have made it, or each makes it again.
test-vllm: $(VLLM)/.installed
	PYTHONDONTWRITEBYTECODE= $(VLLM)/bin/python -m pytest -m vllm -W default tests/vllm $(PYTEST_ARGS)

lint: $(INSTALLED)
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

# The wheel is built from the source distribution, then installed and tried elsewhere.
dist: $(INSTALLED)
	rm -rf dist
	$(BIN)/python -m build --no-isolation
	STEPSEARCH_DIST=dist $(BIN)/python -m pytest -m slow tests/test_packaging.py $(PYTEST_ARGS)

clean:
	rm -rf $(VENV) $(VLLM) build dist stepsearch.egg-info
