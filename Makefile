# A thin front: `make` builds build/ductile, the rest does what it says. README.md has the two commands.
BUILD ?= build
PREFIX ?= /usr/local
DESTDIR ?=
RUNS ?= 10000000
JOBS ?= $(shell nproc)
ARGS ?=

.PHONY: all deps run test test-deps test-long fuzz bench install lint sanitize tsan clean

all:
	cmake -B $(BUILD) -G Ninja -DDT_TESTS=OFF -DCMAKE_INSTALL_PREFIX=$(PREFIX) >/dev/null
	ninja -C $(BUILD) -j$(JOBS) ductile_program

deps:
	scripts/install-deps.sh build

# A corpus from Debian's bible-kjv and jargon-text, a small Llama trained on it, a sample from it.
# ARGS="--train.steps=60" and the like go to `ductile train`.
run:
	scripts/install-deps.sh build corpus
	$(MAKE) --no-print-directory all
	examples/bible/run.sh $(BUILD)/ductile runs/bible $(ARGS)

test-deps:
	scripts/install-deps.sh build test

$(BUILD)-test/build.ninja: CMakeLists.txt
	cmake -B $(BUILD)-test -G Ninja >/dev/null

test: test-deps $(BUILD)-test/build.ninja
	ninja -C $(BUILD)-test -j$(JOBS)
	scripts/check-includes.sh
	cd $(BUILD)-test && ctest --output-on-failure -j$(JOBS) -LE long

# Slow and exhaustive suites, a real Slurm and mpirun, and what needs models or Python oracles that are not in this tree.
test-long: test
	scripts/install-deps.sh cluster
	cd $(BUILD)-test && ctest --output-on-failure -L long

# Unit tests under address and undefined-behaviour sanitizers.
sanitize: test-deps
	cmake -B $(BUILD)-san -G Ninja -DDT_SANITIZE=ON -DCMAKE_BUILD_TYPE=RelWithDebInfo >/dev/null
	ninja -C $(BUILD)-san -j$(JOBS)
	cd $(BUILD)-san && ctest --output-on-failure -j$(JOBS) -L unit

# Tests with several threads under the thread sanitizer, which does not know OpenMP's barriers: one thread each.
tsan: test-deps
	cmake -B $(BUILD)-tsan -G Ninja -DDT_TSAN=ON -DCMAKE_BUILD_TYPE=RelWithDebInfo >/dev/null
	ninja -C $(BUILD)-tsan -j$(JOBS) thread_tests
	cd $(BUILD)-tsan && OMP_NUM_THREADS=1 ctest --output-on-failure -j$(JOBS) -L threads

fuzz:
	scripts/install-deps.sh build test
	scripts/fuzz.sh $(RUNS)

bench: test-deps $(BUILD)-test/build.ninja
	scripts/install-deps.sh bench
	ninja -C $(BUILD)-test -j$(JOBS)
	scripts/bench.sh $(BUILD)-test

lint: test-deps
	scripts/check-includes.sh
	scripts/lint.sh $(BUILD)-test

# bin/ductile, lib/libductile.so, include/ductile, lib/pkgconfig/ductile.pc below DESTDIR/PREFIX.
install: all
	ninja -C $(BUILD) -j$(JOBS) ductile_library
	DESTDIR="$(DESTDIR)" cmake --install $(BUILD)

clean:
	rm -rf $(BUILD) $(BUILD)-test $(BUILD)-san $(BUILD)-tsan
