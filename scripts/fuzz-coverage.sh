#!/bin/sh
# Line coverage of every parser by its fuzz target's seeds and found inputs: scripts/fuzz-coverage.sh [NAME ...]
# The files of a parser stand in lines "covers: FILE ..." of tests/fuzz/fuzz_NAME.c. Inputs come from
# tests/fuzz/NAME/seeds and $DT_FUZZ_BUILD/corpus/NAME (default build-fuzz, written by scripts/fuzz.sh).
set -eu
root=$(cd "$(dirname "$0")/.." && pwd)
found=${DT_FUZZ_BUILD:-$root/build-fuzz}
build=${DT_COVERAGE_BUILD:-$root/build-fuzz-coverage}
tool() { command -v "$1-14" || command -v "$1"; }
profdata=$(tool llvm-profdata)
cov=$(tool llvm-cov)
CC=${CC:-clang} cmake -S "$root" -B "$build" -G Ninja -DDT_FUZZ=ON -DDT_COVERAGE=ON >/dev/null

if [ $# -eq 0 ]; then
    for source in "$root"/tests/fuzz/fuzz_*.c; do
        set -- "$@" "$(basename "$source" .c | sed 's/^fuzz_//')"
    done
fi
for name; do
    ninja -C "$build" "fuzz_$name" >"$build/build.log" || { tail -30 "$build/build.log"; exit 1; }
    inputs=
    for directory in "$root/tests/fuzz/$name/seeds" "$found/corpus/$name"; do
        [ -d "$directory" ] && inputs="$inputs $directory"
    done
    files=$(sed -n 's/.*covers: *//p' "$root/tests/fuzz/fuzz_$name.c" | sed 's/\*\///')
    # shellcheck disable=SC2086
    LLVM_PROFILE_FILE=$build/$name.profraw "$build/fuzz_$name" -runs=0 $inputs >"$build/$name.log" 2>&1
    "$profdata" merge -sparse "$build/$name.profraw" -o "$build/$name.profdata"
    echo "$name:"
    for file in $files; do
        "$cov" report -instr-profile="$build/$name.profdata" "$build/fuzz_$name" "$root/$file" |
            awk -v file="$file" '$1 == "TOTAL" {
                printf "  %-34s %4d of %4d lines  %5.1f %%\n", file, $8 - $9, $8, 100 * ($8 - $9) / $8 }'
    done
done
