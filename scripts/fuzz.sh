#!/bin/sh
# Build and run every fuzz target: scripts/fuzz.sh [RUNS] [NAME ...]
# RUNS executions each (default 10 000 000), from the seeds in tests/fuzz/NAME/seeds and what earlier runs
# found (BUILD/corpus/NAME), with the dictionary tests/fuzz/NAME/dict. Prints one line a target; a crash
# leaves its input in BUILD/crash-NAME-* and makes the script fail. BUILD is $DT_FUZZ_BUILD or build-fuzz.
set -eu
runs=${1:-10000000}
[ $# -gt 0 ] && shift
root=$(cd "$(dirname "$0")/.." && pwd)
build=${DT_FUZZ_BUILD:-$root/build-fuzz}
CC=${CC:-clang} cmake -S "$root" -B "$build" -G Ninja -DDT_FUZZ=ON -DDT_SANITIZE=ON >/dev/null

if [ $# -eq 0 ]; then
    for source in "$root"/tests/fuzz/fuzz_*.c; do
        set -- "$@" "$(basename "$source" .c | sed 's/^fuzz_//')"
    done
fi
targets=
for name; do targets="$targets fuzz_$name"; done
# shellcheck disable=SC2086
ninja -C "$build" $targets >"$build/build.log" || { tail -30 "$build/build.log"; exit 1; }

failed=0
for name; do
    here=$root/tests/fuzz/$name
    mkdir -p "$build/corpus/$name"
    log=$build/fuzz-$name.log
    seeds=
    [ -d "$here/seeds" ] && seeds=$here/seeds
    dict=
    [ -f "$here/dict" ] && dict=-dict=$here/dict
    began=$(date +%s)
    # shellcheck disable=SC2086
    if "$build/fuzz_$name" -runs="$runs" -max_len=8192 -timeout=120 -rss_limit_mb=4096 \
        -artifact_prefix="$build/crash-$name-" -print_final_stats=1 $dict \
        "$build/corpus/$name" $seeds >"$log" 2>&1; then
        verdict=clean
    else
        verdict="FAILED, see $log"
        failed=1
    fi
    done_runs=$(sed -n 's/^stat::number_of_executed_units: *//p' "$log")
    edges=$(sed -n 's/.* cov: \([0-9]*\) .*/\1/p' "$log" | tail -1)
    echo "fuzz $name: ${done_runs:-?} executions, ${edges:-?} edges, $(($(date +%s) - began)) s, $verdict"
done
exit $failed
