# Few verbs, and the continuous integration calls these unchanged.
#   make serve        set up what is missing, then serve the demo model on http://127.0.0.1:8000/v1
#   make test         set up what is missing, then run the tests
#   make check        lint, types, import rules
#   make demo-model   make the embedded demo model again (one to two hours on a CPU)
#   make test-slow    what takes minutes: full matrices, benchmarks, hundreds of fault seeds, long kills
#   make test-upgrade replace each part by another version's while clients stream (UPGRADE_FROM=COMMIT; the last tag)
#   make test-faults  the fault matrix and the attacks with real processes, into docs/results/faults.md (ARGS="--rows F3,F6 --settings
#                     plain,galaxy", --list, --publish); as root, with iproute2, util-linux, redis-server and faketime all of it runs
#   make test-chaos   kills, stops, partitions, slow logs, clocks that jump, by seeds (ARGS="--seeds 1000 --minutes 60", "--seed 123")
#   make test-frames  a million wrong frames at everything that listens (ARGS="--count 1000000"); make test-soak: everything at
#                     once for half an hour; make test-mendings: each mending taken out of a copy, whose test must fail then
#   make test-clients clients of others (openai-node, LangChain, litellm, instructor, the Vercel AI SDK, llm, lm-evaluation-harness)
#                     against a real installation; it installs them into .venv-clients (a gigabyte)
#   make test-random  the property tests again, with other examples each time
#   make bench        measure the way through Trilby and write docs/benchmarks.md; bench-engine, bench-interference,
#                     bench-second-turn, bench-structured, bench-decisions, bench-failure, bench-soak, bench-drafting and bench-drafting-speed (with
#                     ARGS=--ablate too) do the same for their sections; bench-greedy, bench-fabric, bench-few-rows,
#                     bench-offload, bench-pruning, bench-accuracy (ARGS=--pruned: into EdgeFormer's page), bench-cold-start
#                     and bench-gpu print
#   make bench-api    what the API costs: requests, a thousand streams, limits over two gateways, trilby bench beside guidellm
#                     (ARGS="--only rates --litellm PROGRAM --guidellm PROGRAM"), into docs/benchmarks.md
#   make bench-hat    the HAT paper's evaluation on an emulated network, under three hours (ARGS=--quick: less of it;
#                     --list: what is missing and how long it takes; --published: on top of what is published), into
#                     docs/results/; as root, with iproute2 and util-linux
#   make bench-voltage, bench-galaxy, bench-lime, bench-edgeformer   the evaluations of four papers on edge groups, in the same
#                     way (ARGS=--quick, --list, "--minutes N")
#   make test-images  build the images for gateway, cloud and device (CPU) on a stand-in base, without a network, and answer a chat;
#                     as root, with buildah and debootstrap
#   make bench-privacy   trilby audit of the demo model, and of small real models where they are at hand, into docs/results/privacy.md
#   make test-page    the gateway's page in Debian's Chromium, which it installs where it may, with axe-core (npm)
#   make page-pictures   make the pictures of the page in docs/ again
#   make settings     write docs/settings.md from the code
#   make lock         renew the locks, with hashes, from pyproject.toml and what ends in .in
# Variables: PYTHON=python3.11   PIP_FLAGS="--index-url https://…"   ARGS="--port 9000"   WORKERS=4 (processes that run tests)

PYTHON ?= python3
PIP_FLAGS ?=
ARGS ?=
WORKERS ?= 2
VENV := .venv
BIN := $(VENV)/bin
READY := $(VENV)/.ready
DEV_READY := $(VENV)/.dev-ready
CLIENTS := .venv-clients
CLIENTS_READY := $(CLIENTS)/.ready

BENCHES := bench-greedy bench-fabric bench-few-rows bench-packing bench-engine bench-interference bench-second-turn bench-structured bench-decisions bench-api bench-failure bench-soak bench-drafting bench-drafting-speed bench-hat bench-voltage bench-galaxy bench-lime bench-edgeformer bench-offload bench-pruning bench-accuracy bench-cold-start bench-privacy

FAULTS := test-faults test-chaos test-frames test-soak test-mendings

# One thread each; what is left out here chooses its threads itself, as `trilby` does.
test test-page page-pictures test-slow test-random test-upgrade test-clients $(FAULTS) bench $(filter-out bench-engine bench-few-rows bench-interference,$(BENCHES)): export OMP_NUM_THREADS := 1

# Each process that a test starts would compile all that it imports.
test test-slow test-random test-upgrade test-clients $(FAULTS): export PYTHONDONTWRITEBYTECODE :=

COMPILE := $(BIN)/uv pip compile --quiet --universal --python-version 3.10 --no-header --no-annotate --no-emit-package setuptools --generate-hashes
# PyTorch has a file of its own (it says why). It names its own CUDA packages where its build has any; pinning them here would
# pull them in for CPU builds too. A requirement is a line with its hashes behind it, on lines that begin with blanks.
WITHOUT_TORCH := awk '/^[^ ]/ { left_out = /^(torch|triton|nvidia-|cuda-)/ } !left_out'

# The tests of several gateways start a redis-server of their own; without one they are skipped.
REDIS = command -v redis-server > /dev/null || { test "$$(id -u)" = 0 && command -v apt-get > /dev/null && echo "Installing redis-server for the tests …" \
	&& { $(APT) install redis-server || { $(APT) update && $(APT) install redis-server; }; } > /dev/null 2>&1; } \
	|| echo "There is no redis-server: the tests of several gateways are skipped."
APT := DEBIAN_FRONTEND=noninteractive apt-get -y -q --no-install-recommends

# A browser for the tests of the page; without one they are skipped.
CHROMIUM = command -v chromium > /dev/null || { test "$$(id -u)" = 0 && command -v apt-get > /dev/null && echo "Installing Chromium for the tests of the page …" \
	&& { $(APT) install chromium || { $(APT) update && $(APT) install chromium; }; } > /dev/null 2>&1; } \
	|| echo "There is no Chromium: the tests of the page are skipped."

# As `trilby` starts the processes that hold layers; rivals in the same process have it too.
bench-engine bench-few-rows bench-interference bench-drafting bench-drafting-speed bench-voltage bench-galaxy bench-edgeformer: export GLIBC_TUNABLES := glibc.malloc.hugetlb=1

.PHONY: serve test test-page page-pictures $(FAULTS) test-slow test-random test-upgrade test-clients test-images check demo-model bench $(BENCHES) bench-gpu settings lock clean

serve: $(READY)
	@$(BIN)/trilby serve $(ARGS)

test: $(DEV_READY)
	@$(REDIS)
	@echo "Running the tests (several minutes) …"
	@$(BIN)/python -m pytest -q -n $(WORKERS) --dist loadfile --no-loadscope-reorder $(ARGS)

test-page: $(DEV_READY)
	@$(CHROMIUM)
	@$(BIN)/python -m pytest -q -rs tests/system/test_page.py tests/system/test_page_alone.py tests/gateway/test_page.py tests/gateway/test_page_files.py $(ARGS)

page-pictures: $(DEV_READY)
	@$(CHROMIUM)
	@$(BIN)/python tests/page_pictures.py $(ARGS)

test-slow: $(DEV_READY)
	@echo "Running the slow tests (an hour or so) …"
	@$(BIN)/python -m pytest -q -m slow --timeout 3600 $(ARGS)

test-upgrade: $(DEV_READY)
	@echo "Replacing each part by another version's under load (minutes) …"
	@UPGRADE_FROM=$(UPGRADE_FROM) $(BIN)/python -m pytest -q -s -m slow --timeout 1800 tests/system/test_upgrade.py $(ARGS)

test-faults: $(DEV_READY)
	@$(REDIS)
	@echo "Breaking things (an hour or two for all of them) …"
	@PYTHONPATH=tests $(BIN)/python -m faults $(ARGS)

test-chaos test-frames test-soak: $(DEV_READY)
	@$(REDIS)
	@PYTHONPATH=tests $(BIN)/python -m faults.$(@:test-%=%) $(ARGS)

test-mendings: $(DEV_READY)
	@$(REDIS)
	@PYTHONPATH=tests $(BIN)/python -m faults.mend $(ARGS)

test-clients: $(CLIENTS_READY)
	@echo "Letting clients of others ask a real installation (several minutes) …"
	@LM_EVAL=$(abspath $(CLIENTS))/bin/lm_eval $(BIN)/python -m pytest -q -p no:randomly -m "slow or not slow" tests/system/test_other_clients.py tests/system/test_lm_eval.py $(ARGS)

test-random: $(DEV_READY)
	@echo "Running the property tests with new examples (several minutes) …"
	@$(BIN)/python -m pytest -q -n $(WORKERS) -m "hypothesis and not slow" --hypothesis-profile random $(ARGS)

check: $(DEV_READY)
	@echo "Checking style, types and import rules …"
	@$(BIN)/ruff check .
	@$(BIN)/ruff format --check .
	@$(BIN)/mypy
	@$(BIN)/lint-imports --no-cache

demo-model: $(DEV_READY)
	@$(BIN)/python -m models.demo.recipe $(ARGS)

bench: $(DEV_READY)
	@PYTHONPATH=tests $(BIN)/python -m bench.overhead $(ARGS)

$(BENCHES): $(DEV_READY)
	@PYTHONPATH=tests $(BIN)/python -m bench.$(subst -,_,$(@:bench-%=%)) $(ARGS)

bench-gpu: $(DEV_READY)
	@PYTHONPATH=tests $(BIN)/python -m bench.gpu_engine $(ARGS)

$(READY): requirements.lock requirements-torch.lock pyproject.toml
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 10) and "Trilby needs Python 3.10 or newer; this is " + sys.version.split()[0] + ". Try: make serve PYTHON=python3.11")'
	@$(BIN)/python -m pip --version > /dev/null 2>&1 || (echo "Making a virtual environment in $(VENV) …" && $(PYTHON) -m venv $(VENV))
	@echo "Installing pinned packages (PyTorch is the big one; a minute or more the first time) …"
	@$(BIN)/python -m pip install --quiet --disable-pip-version-check $(PIP_FLAGS) -r requirements.lock
	@$(BIN)/python -m pip install --quiet --disable-pip-version-check $(PIP_FLAGS) -r requirements-torch.lock
	@$(BIN)/python -m pip install --quiet --disable-pip-version-check $(PIP_FLAGS) --no-deps --editable .
	@touch $@

$(DEV_READY): $(READY) requirements-dev.lock
	@echo "Installing what the tests need …"
	@$(BIN)/python -m pip install --quiet --disable-pip-version-check $(PIP_FLAGS) -r requirements-dev.lock
	@touch $@

# PyTorch is .venv's: what is not in one environment is looked for in the other.
$(CLIENTS_READY): $(DEV_READY) requirements-clients.lock tests/system/clients/package-lock.json
	@echo "Installing clients of others in $(CLIENTS) (a gigabyte; minutes the first time) …"
	@$(BIN)/uv venv --quiet --allow-existing --python $(BIN)/python $(CLIENTS)
	@$(BIN)/uv pip install --quiet --no-deps --require-hashes --python $(CLIENTS)/bin/python -r requirements-clients.lock
	@$(BIN)/python -c 'import sysconfig; print(sysconfig.get_path("purelib"))' > "$$($(CLIENTS)/bin/python -c 'import sysconfig; print(sysconfig.get_path("purelib"))')/zz-torch.pth"
	@cp tests/system/clients/package.json tests/system/clients/package-lock.json $(CLIENTS)/
	@cd $(CLIENTS) && PATH="$$PWD/bin:$$PATH" npm ci --silent --no-audit --no-fund
	@touch $@

test-images: $(DEV_READY)
	@PYTHONPATH=tests $(BIN)/python -m k8s.images

settings: $(DEV_READY)
	@PYTHONPATH=. $(BIN)/python tests/settings_page.py

lock:
	@$(MAKE) --no-print-directory $(DEV_READY)
	@echo "Resolving …"
	@$(COMPILE) pyproject.toml -c requirements-torch.lock | $(WITHOUT_TORCH) > requirements.lock
	@$(COMPILE) requirements-dev.in -c requirements.lock | $(WITHOUT_TORCH) > requirements-dev.lock
	@$(COMPILE) docker/gateway.in -c requirements.lock > docker/gateway.lock
	@$(filter-out --no-emit-package setuptools,$(COMPILE)) requirements-clients.in | $(WITHOUT_TORCH) > requirements-clients.lock
	@$(COMPILE) docker/traces.in -c requirements.lock -c requirements-dev.lock > docker/traces.lock

clean:
	rm -rf $(VENV) $(CLIENTS) build *.egg-info
