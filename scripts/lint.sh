#!/bin/sh
# clang-format and clang-tidy over what is committed. usage: lint.sh BUILD_DIR (with compile_commands.json)
set -eu
cd "$(dirname "$0")/.."
files=$(git ls-files 'src/*.c' 'src/*.h' 'tests/*.c' 'bench/*.c')
# shellcheck disable=SC2086
clang-format --dry-run --Werror $files
sources=$(git ls-files 'src/*.c' | grep -v '\.simd\.c$')
# shellcheck disable=SC2086
clang-tidy --quiet -p "$1" --warnings-as-errors='*' $sources
