# Everything runs in .venv, and each target makes what it needs first.

.DEFAULT_GOAL := help
.PHONY: help run test check coverage lint format bench gpu-check vllm-check ready chromium model clean

PY := .venv/bin/python
# Two files of tests at a time; PARALLEL= runs one after the other.
PARALLEL := -n 2 --dist loadfile

help:  ## this list
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "make %-10s %s\n", $$1, $$2 }' Makefile

run: .venv/installed  ## the app on http://127.0.0.1:7860
	$(PY) app.py

test: ready lint  ## everything: lint, then every test, with the default model and a browser
	$(PY) -m pytest $(PARALLEL) $(ARGS)

check: .venv/installed-tests lint  ## quick: lint, and the tests that need neither a browser nor the default model
	$(PY) -m pytest $(PARALLEL) -m "not browser and not slow" $(ARGS)

coverage: .venv/installed-tests  ## the quick tests, and which statements of the package they run
	$(PY) -m pytest $(PARALLEL) -m "not browser and not slow" --cov=playground --cov-report=term:skip-covered $(ARGS)

lint: .venv/installed-tests
	$(PY) -m ruff check .
	$(PY) -m ruff format --check .

format: .venv/installed-tests  ## put the code into the one format
	$(PY) -m ruff check --fix .
	$(PY) -m ruff format .

bench: .venv/installed  ## tokens per second against transformers' own generate
	$(PY) -m playground bench $(ARGS)

gpu-check: .venv/installed  ## what can only be checked on a CUDA machine; needs no network
	$(PY) -m playground.experiments.gpu_check $(ARGS)

vllm-check: .venv/installed-tests chromium model  ## against a real vLLM (3.5 GB, once); VLLM_PYTHON=/path/to/python uses one that is there
	$(PY) -m playground.experiments.vllm_check $(ARGS)

clean:  ## remove the environment and the caches in this folder (not the models in the user's cache)
	rm -rf .venv .pytest_cache .ruff_cache .hypothesis build *.egg-info
	find . -name __pycache__ -type d -prune -exec rm -rf {} +

ready: .venv/installed-tests chromium model

# The first Python of at least 3.11; `make run PYTHON=/path/to/python` names another.
.venv/made:
	@for python in $(PYTHON) python3 python3.12 python3.11 python3.13 python3.14 python; do \
	  $$python -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null && break; python=; \
	done; \
	if [ -z "$$python" ]; then \
	  echo "No Python 3.11 or newer was found. Install one, or name it: make PYTHON=/path/to/python run" >&2; exit 1; \
	fi; \
	if ! $$python -c 'import ensurepip, venv' 2>/dev/null; then \
	  echo "$$python can't make environments: it lacks ensurepip or venv." >&2; \
	  echo "On Debian and Ubuntu: apt-get install python3-venv. Or name another Python: make PYTHON=/path/to/python run" >&2; exit 1; \
	fi; \
	echo "$$python -m venv .venv"; $$python -m venv .venv && touch $@

.venv/installed: .venv/made requirements.txt
	$(PY) -m pip install -r requirements.txt
	@touch $@

.venv/installed-tests: .venv/installed tests/requirements.txt
	$(PY) -m pip install -r tests/requirements.txt
	@touch $@

# A browser for the tests: the one named or installed, else Debian's, else Playwright's own. Without one they are skipped, and say so.
chromium: .venv/installed-tests
	@if [ -n "$$PLAYGROUND_CHROMIUM" ] || command -v chromium >/dev/null || command -v google-chrome >/dev/null; then :; \
	elif [ "$$(id -u)" = 0 ] && grep -qx 'ID=debian' /etc/os-release 2>/dev/null; then \
	  apt-get update -qq && DEBIAN_FRONTEND=noninteractive apt-get install -y -qq --no-install-recommends chromium fonts-noto-cjk; \
	else $(PY) -m playwright install chromium; \
	fi || echo "No Chromium could be installed: the browser tests will be skipped." >&2

# The default model, into the user's cache folder: a download of about 100 MB, once.
model: .venv/installed
	@$(PY) -c 'from playground.backends import embedded, progress; print("default model:", embedded.ensure_model(progress.unreported))'
