# The two commands of the README. Everything they need is installed by tools/setup, which says what it does.
PRESET ?= cpu
PYTHON = $(CURDIR)/.cache/python/bin/python

.PHONY: demo train-demo rl-demo test test-all build install deb tarball wheel python-asan bench format check-format tidy tidy-changed site fuzz hostile asan tsan serve-asan serve-tsan clean

demo: build
	tools/demo build/$(PRESET)/nibble

# A small model from this repository's pages: trained, quantized, generating. No network.
train-demo: build
	tools/train-demo build/$(PRESET)/nibble

# A small model that reads sums, and then learns to answer them by GRPO. No network.
rl-demo: build
	tools/rl-demo build/$(PRESET)/nibble

# Every test runs once. A test that fails by chance is a fault of the test, so nothing runs it a second time.
test:
	tools/setup --test
	cmake --preset $(PRESET) -DNIBBLE_TESTS=ON -DNIBBLE_PYTHON=$(PYTHON)
	cmake --build build/$(PRESET)
	ctest --test-dir build/$(PRESET) --output-on-failure -j2

# The tests of `make test`; fuzzing with fixed inputs and hostile inputs, both with AddressSanitizer and UndefinedBehaviorSanitizer;
# comparisons with other programs (tests/peers), which need several GB of packages.
test-all: test
	tools/fuzz --fixed
	$(MAKE) hostile
	tools/setup --peers
	tools/test-all build/$(PRESET)/nibble

build:
	tools/setup
	cmake --preset $(PRESET) -DNIBBLE_TESTS=OFF
	cmake --build build/$(PRESET) --target nibble

# PREFIX=$$HOME/.local, or DESTDIR=... for packages.
PREFIX ?= /usr/local
install: build
	cmake --build build/$(PRESET) --target nibble_library nibble_documents
	cmake --install build/$(PRESET) --prefix $(PREFIX)

deb: build
	cmake --build build/$(PRESET) --target nibble_library nibble_documents
	cd build/$(PRESET) && cpack -G DEB

tarball: build
	tools/make-tarball build/$(PRESET)

# The Python package (docs/python.md): build/cpu/wheel/nibble-*.whl.
wheel:
	tools/setup --python
	cmake --preset $(PRESET) -DNIBBLE_PYTHON=$(PYTHON)
	cmake --build build/$(PRESET) --target _core nibble
	tools/make-wheel build/$(PRESET)

# The tests of the Python package over a module with AddressSanitizer and UndefinedBehaviorSanitizer.
python-asan: wheel
	tools/test-python-asan build/$(PRESET)

bench: build
	build/$(PRESET)/nibble bench quantize

asan tsan:
	$(MAKE) test PRESET=$@

# The server under load, with a sanitizer: the tests of HTTP, engine and server, and the official clients with 200 requests at once. The first report of
# AddressSanitizer or UndefinedBehaviorSanitizer ends a program; after one of ThreadSanitizer its exit status is 66.
serve-asan serve-tsan: serve-%:
	tools/setup --test
	cmake --preset $* -DNIBBLE_TESTS=ON
	cmake --build build/$* --target nibble test_http test_engine test_server
	for folder in http engine server; do build/$*/tests/test_$$folder || exit 1; done
	python3 tests/oracles/openai_clients.py build/$*/nibble

fuzz:
	tools/setup --test
	tools/fuzz

# Hostile inputs through the whole program, built as the fuzz targets are: with AddressSanitizer and UndefinedBehaviorSanitizer.
hostile:
	tools/setup --test
	cmake --preset fuzz
	cmake --build build/fuzz --target nibble
	python3 tests/oracles/hostile_inputs.py build/fuzz/nibble

format:
	git ls-files '*.h' '*.cpp' '*.cu' '*.cuh' ':!tests/data' | xargs clang-format -i

# Fails if `make format` would change a file.
check-format:
	git ls-files '*.h' '*.cpp' '*.cu' '*.cuh' ':!tests/data' | xargs clang-format --dry-run -Werror

tidy:
	tools/setup
	cmake --preset tidy >/dev/null
	cmake --build build/tidy --target embedded >/dev/null
	run-clang-tidy -p build/tidy -quiet '/nibble/|/Unity/' >build/tidy/log 2>&1 || { grep -E "(warning|error):" build/tidy/log; exit 1; }

# The pages of docs/ as a web site, in build/site.
site:
	python3 -m venv .cache/site
	.cache/site/bin/pip install --quiet --disable-pip-version-check mkdocs==1.6.1
	.cache/site/bin/mkdocs build --strict

# The same for sources that differ from BASE, about 15 s of processor time a file. A changed header is read with the
# sources that include it, so only changed sources are listed.
BASE ?= origin/main
tidy-changed:
	tools/setup
	cmake --preset tidy >/dev/null
	cmake --build build/tidy --target embedded >/dev/null
	git diff --name-only --diff-filter=d $$(git merge-base HEAD $(BASE)) -- 'nibble/*.cpp' | grep -vE '(^|/)(cuda|device)/' | xargs -r -P2 -n1 clang-tidy -p build/tidy -quiet

clean:
	rm -rf build
