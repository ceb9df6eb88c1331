#!/bin/sh
# What `make install` gives: a program that starts, a library that another program builds against with nothing but
# pkg-config, a header that C++ takes too, and no symbol but the public ones. usage: test_install.sh SOURCE BUILD
set -eu
source=$(cd "$1" && pwd)
build=$(cd "$2" && pwd)
dir=$(mktemp -d)
trap 'rm -rf "$dir"' EXIT
fail() { echo "test_install: $*" >&2; exit 1; }

# As a packager does it: staged below DESTDIR, used from there.
DESTDIR=$dir/stage cmake --install "$build" --prefix /opt/ductile >"$dir/log"
prefix=$dir/stage/opt/ductile
PKG_CONFIG_PATH=$(dirname "$(find "$prefix" -name ductile.pc)")
LD_LIBRARY_PATH=$(pkg-config --variable=libdir "$PKG_CONFIG_PATH/ductile.pc")
export PKG_CONFIG_PATH LD_LIBRARY_PATH
version=$("$prefix/bin/ductile" version | cut -d' ' -f2)
[ "$(pkg-config --modversion ductile)" = "$version" ] || fail "ductile.pc and the program differ in version"

strange=$(nm -D --defined-only "$LD_LIBRARY_PATH/libductile.so" | awk '{ print $NF }' | grep -v '^ductile_' || true)
[ -z "$strange" ] || fail "the library gives away" $strange
for symbol in $(sed -n 's/^DUCTILE_API .*\(ductile_[a-z_]*\)(.*/\1/p' "$source/include/ductile/ductile.h"); do
    nm -D --defined-only "$LD_LIBRARY_PATH/libductile.so" | grep -q " $symbol\$" || fail "$symbol is missing"
done

cp "$source/examples/embed/embed.c" "$source/examples/embed/Makefile" "$dir"
make -C "$dir" CC="${CC:-cc}" CFLAGS="-Wall -Wextra -Werror" >>"$dir/log" 2>&1 || { cat "$dir/log"; exit 1; }
for cxx in c++ clang++; do
    command -v $cxx >/dev/null || continue
    echo '#include <ductile/ductile.h>' | $cxx -x c++ -fsyntax-only -Wall -Wextra -Werror -I"$prefix/include" - ||
        fail "$cxx does not take the header"
done

# It trains and evaluates; a mistake comes back as words and a code.
cd "$dir"
awk 'BEGIN { for (r = 0; r < 40; r++) { line = ""; for (i = 0; i < 24; i++) line = line (i ? ", " : "") 3 + (r + i) % 20;
    print "{\"input_ids\": [" line "]}" } }' >rows.jsonl
cat >run.yaml <<END
model: $source/tests/golden/models/llama_default
output: run
data: {train: [rows.jsonl], max_length: 64}
batch: {tokens: 256}
train: {steps: 5}
END
./embed run.yaml run rows.jsonl threads=1 >out 2>err || { cat err; fail "the example failed"; }
grep -q "^ductile $version: loss [0-9.]* over 920 tokens\$" out || { cat out; fail "unexpected words"; }
[ -s run/checkpoints/step-00000005/model.safetensors ] || fail "no checkpoint"
code=0
./embed run.yaml run rows.jsonl train.stepz=7 >out 2>err || code=$?
[ $code = 2 ] || fail "a misspelt key gave exit code $code"
grep -q 'train.steps' err || { cat err; fail "the message does not name the nearest key"; }
code=0
./embed run.yaml missing rows.jsonl threads=1 >out 2>err || code=$?
[ $code = 3 ] || fail "a missing model gave exit code $code"
echo "installed, linked, trained"
