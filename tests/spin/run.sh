#!/bin/sh
# Searches step.pml whole, then with one rule of the protocol broken at a time: the first must be free of errors, each of
# the others must not. usage: run.sh; exit 77 without spin. It takes 1.3 GB and two or three minutes; bounds: 3.5 GB, 240 s a search.
set -eu
here=$(cd "$(dirname "$0")" && pwd)
for tool in spin gcc; do
    command -v $tool >/dev/null || { echo "SKIPPED: there is no $tool (Debian's spin, gcc)" >&2; exit 77; }
done
dir=$(mktemp -d)
trap 'rm -rf "$dir"' EXIT
cd "$dir"
# search OPTION...: the output of the verifier, in out.
search() {
    spin -a "$@" "$here/step.pml" >generate.out 2>&1 || { cat generate.out; exit 1; }
    gcc -O2 -w -DSAFETY -DCOLLAPSE -DMEMLIM=3500 -o pan pan.c
    timeout 240 ./pan -m200000 -w24 >out 2>&1 || true
    rm -f ./*.trail
}
search -DSTEPS=3
if ! grep -q 'errors: 0' out || grep -qE 'not completed|too small|\([1-9][0-9]* of [0-9]+ states\)' out; then
    cat out
    echo "step.pml: an error, a search that was not finished, or states never reached" >&2
    exit 1
fi
grep -E 'states, stored|elapsed' out
for broken in UPDATE_EARLY NO_ACKNOWLEDGEMENT OLD_VOTES FORGET_DECIDE UNCONFIRMED FREE_EARLY DROP_BUILT NO_RELOAD; do
    search -D$broken
    grep -qE 'errors: [1-9]' out || { cat out; echo "$broken: the model does not notice" >&2; exit 1; }
    echo "$broken: $(grep -m 1 '^pan:' out)"
done
