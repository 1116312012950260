# The verbs of the project: demo, test, check, bench (and soak, the long form of some tests).
.PHONY: demo test check bench soak constraints
PYTHON ?= python3
# What takes long runs in CI on each further version of the broker, and here with ARGS="-m long".
# Tests wait more than they work: twice as many at a time as there are processors.
WORKERS ?= 4
bin := .venv/bin
ready := .venv/ready

demo: $(ready)
	@sandbox/install-servers rabbitmq-server redis-server
	@$(bin)/python -m sandbox.demo

test: $(ready)
	@sandbox/install-servers rabbitmq-server redis-server postgresql
	@$(bin)/python -m pytest --numprocesses $(WORKERS) --dist loadgroup $(ARGS)

check: $(ready)
	@$(bin)/ruff check .
	@$(bin)/ruff format --check .
	@$(bin)/mypy
	@$(bin)/lint-imports
	@$(bin)/broker-topology lint definitions.json

# make bench, or one: make bench NAME=drain
bench: $(ready)
	@sandbox/install-servers rabbitmq-server redis-server postgresql
	@$(bin)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt -e '.[bench]'
	@set -e; for file in benchmarks/$(if $(NAME),$(NAME),*).py; do \
	  grep -q "^if __name__" $$file || continue; \
	  $(bin)/python -m benchmarks.$$(basename $$file .py); done

soak: $(ready)
	@sandbox/install-servers rabbitmq-server redis-server postgresql
	@$(bin)/python -m pytest -m soak --timeout 3600 $(ARGS)

$(ready): pyproject.toml constraints.txt
	@test -x $(bin)/python || $(PYTHON) -m venv .venv
	@echo "Installing the project into .venv ..."
	@$(bin)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt -e '.[dev]'
	@touch $(ready)

# What was tested, pinned.
constraints: $(ready)
	$(bin)/python -m pip freeze --exclude-editable >constraints.txt
