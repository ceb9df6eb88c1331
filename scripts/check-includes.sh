#!/bin/sh
# The include direction of DESIGN: a room may include itself and what stands after its colon, nothing else.
# One room, one line; a violation fails the build.
set -eu
cd "$(dirname "$0")/.."
rules="base:
ops: base
comm: base
data: base
arch: base
layout: arch base
plan: layout arch base
model: arch ops base
state: layout arch ops comm base
train: state model data plan layout arch ops comm base
cluster: train state model data plan layout arch ops comm base
serve: cluster train state model data plan layout arch ops comm base
cli: serve cluster train state model data plan layout arch ops comm base"
bad=0
for dir in src/*/; do
    room=$(basename "$dir")
    allowed=$(printf '%s\n' "$rules" | sed -n "s/^$room://p")
    if ! printf '%s\n' "$rules" | grep -q "^$room:"; then
        echo "src/$room: a room that the rules of scripts/check-includes.sh do not know" >&2
        bad=1
        continue
    fi
    for other in $(printf '%s\n' "$rules" | cut -d: -f1); do
        [ "$other" = "$room" ] && continue
        case " $allowed " in *" $other "*) continue ;; esac
        if grep -rnE "^#include \"$other/" "src/$room"; then
            echo "src/$room must not include $other/" >&2
            bad=1
        fi
    done
done
exit $bad
