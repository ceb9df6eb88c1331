#!/bin/sh
# Installs what is missing from Debian's packages. usage: install-deps.sh build|corpus|test|cluster|bench ...
set -eu
build="gcc cmake ninja-build pkg-config libc6-dev libyaml-dev libjansson-dev libpcre2-dev libutf8proc-dev libxxhash-dev zlib1g-dev libucx-dev libsodium-dev"
corpus="bible-kjv jargon-text xz-utils"
test="libcmocka-dev clang clang-format clang-tidy libclang-rt-14-dev qemu-user iproute2 $corpus"
cluster="openmpi-bin munge slurmctld slurmd slurm-client spin iproute2"
bench="ucx-utils"
wanted=""
for group in "$@"; do
    case $group in
    build) wanted="$wanted $build" ;;
    corpus) wanted="$wanted $corpus" ;;
    test) wanted="$wanted $test" ;;
    cluster) wanted="$wanted $cluster" ;;
    bench) wanted="$wanted $bench" ;;
    *) echo "install-deps.sh: unknown group '$group'" >&2; exit 2 ;;
    esac
done
missing=""
for package in $wanted; do
    dpkg-query -W -f '${Status}' "$package" 2>/dev/null | grep -q 'ok installed' || missing="$missing $package"
done
[ -n "$missing" ] || exit 0
if [ "$(id -u)" = 0 ]; then sudo=""
elif command -v sudo >/dev/null; then sudo="sudo"
else
    echo "missing packages:$missing" >&2
    echo "install them as root (apt-get install$missing), then run this again" >&2
    exit 1
fi
echo "installing:$missing" >&2
$sudo apt-get update -qq
# shellcheck disable=SC2086
$sudo env DEBIAN_FRONTEND=noninteractive apt-get install -y -qq --no-install-recommends $missing >&2
