# What a contributor runs. `make check` is what CI runs.

SMOLLM2 := models/SmolLM2-135M-Instruct.Q4_1.gguf
PYTHON ?= python3
CARGO ?= cargo
BINARIES := $(or $(CARGO_TARGET_DIR),target)/release
PREFIX ?= /usr/local
INTO = $(DESTDIR)$(PREFIX)

.PHONY: help demo models models-for-tests build install dist test loom valgrind check fmt fmt-check clippy docs cycles shellcheck clean

help: ## this list
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "make %-12s %s\n", $$1, $$2 }' Makefile

demo: ## a 94 MiB model in a budget of 64 MiB
	$(PYTHON) scripts/fetch_models.py --only smollm2
	$(CARGO) build --release -p emel-cli --bin emel
	$(BINARIES)/emel run $(SMOLLM2) --ram-budget 64M -st -p "Give me three tips for staying healthy." --temp 0

models: ## download the two small test models
	$(PYTHON) scripts/fetch_models.py

# Without the network the tests that need a model skip themselves, unless
# EMEL_REQUIRE_MODELS=1 asks for all of them.
models-for-tests:
	@$(PYTHON) scripts/fetch_models.py || { \
		test "$${EMEL_REQUIRE_MODELS:-0}" != 1 && \
		echo "warning: testing without the models" >&2; }

build: ## the program
	$(CARGO) build --release -p emel-cli --bin emel

install: build ## program, completions and man pages, into PREFIX (/usr/local) under DESTDIR
	install -d $(INTO)/bin $(INTO)/share/man/man1 $(INTO)/share/zsh/site-functions \
		$(INTO)/share/bash-completion/completions $(INTO)/share/fish/vendor_completions.d
	install -m 755 $(BINARIES)/emel $(INTO)/bin/emel
	ln -sf emel $(INTO)/bin/emel-run
	$(BINARIES)/emel man $(INTO)/share/man/man1
	for name in emel emel-run; do \
		$(BINARIES)/emel completions bash --of $$name >$(INTO)/share/bash-completion/completions/$$name && \
		$(BINARIES)/emel completions fish --of $$name >$(INTO)/share/fish/vendor_completions.d/$$name.fish && \
		$(BINARIES)/emel completions zsh --of $$name >$(INTO)/share/zsh/site-functions/_$$name || exit 1; \
	done

dist: ## one static archive for x86-64 Linux, with licences and SHA256SUMS, in target/archive
	$(PYTHON) scripts/dist.py

test: models-for-tests ## all tests
	$(CARGO) test --workspace

# Without debug information, which would be most of what is built.
loom: ## slots and pool in every order of their threads' steps
	RUSTFLAGS="--cfg emel_loom" CARGO_PROFILE_DEV_DEBUG=0 \
	CARGO_TARGET_DIR=$(or $(CARGO_TARGET_DIR),target)/loom \
	$(CARGO) test -p emel-kernels -p emel-loader --lib interleavings

# Scalar and AVX2: of AVX-512 valgrind knows nothing. Not the pool, whose threads spin.
KERNEL_TESTS := dequantise layer matmul recurrent
valgrind: ## kernel tests under memcheck, which takes some minutes
	PROPTEST_CASES=8 \
	CARGO_TARGET_X86_64_UNKNOWN_LINUX_GNU_RUNNER="valgrind -q --error-exitcode=9 --fair-sched=yes" \
	$(CARGO) test -p emel-kernels $(KERNEL_TESTS:%=--test %)

check: fmt-check clippy docs cycles test ## format, lints, docs and tests

fmt: ## format the sources
	$(CARGO) fmt --all

fmt-check:
	$(CARGO) fmt --all --check

clippy: ## lints, warnings are errors
	$(CARGO) clippy --workspace --all-targets -- -D warnings
	$(CARGO) clippy -p emel --no-default-features -- -D warnings

docs: ## API documentation, warnings are errors
	RUSTDOCFLAGS="-D warnings" $(CARGO) doc --workspace --no-deps

cycles: ## source files that import each other
	$(PYTHON) scripts/import_cycles.py

shellcheck: ## lint the shell scripts
	shellcheck bench/*.sh .ci/run

clean: ## remove build output, keep the models
	$(CARGO) clean
