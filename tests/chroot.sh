#!/bin/sh
# The two commands of the README where there is nothing but Debian's base system: debootstrap makes one, a clone of
# this tree goes in, and only `make` is installed by hand. Needs root, debootstrap and an apt mirror: $MIRROR, else the
# one that this machine's apt uses. Takes as long as a build, a training run and all tests; not part of CI.
#
#     tests/chroot.sh [DIR]      DIR is kept, and its base system used again; else a temporary one
#     RUN_ARGS="--train.steps=30"   shorter training       TESTS="ninja targets"   build only these, run no test
set -eu
root=$(cd "$(dirname "$0")/.." && pwd)
if [ $# -gt 0 ]; then
    mkdir -p "$1"
    dir=$(cd "$1" && pwd)
    keep=1
else
    dir=$(mktemp -d)
    keep=0
fi
sys=$dir/root
say() { printf '\n#### %s\n' "$*"; }

leave() {
    umount "$sys/proc" "$sys/dev" 2>/dev/null || true
    # Never through a mount that did not go away.
    if [ $keep = 0 ] && ! grep -q " $sys/" /proc/mounts; then rm -rf "$dir"; fi
}
trap leave EXIT
trap 'exit 130' INT TERM

if [ ! -x "$sys/usr/bin/apt-get" ]; then
    mirror=${MIRROR:-$(apt-get indextargets --format '$(REPO_URI)' 'Created-By: Packages' 'Codename: bookworm' | head -n 1)}
    say "base system (debootstrap --variant=minbase bookworm)"
    debootstrap --variant=minbase bookworm "$sys" "$mirror" >"$dir/debootstrap.log" || { tail "$dir/debootstrap.log"; exit 1; }
fi
cp /etc/resolv.conf "$sys/etc/resolv.conf"
mount -t proc proc "$sys/proc"
mount --bind /dev "$sys/dev"
rm -rf "$sys/root/ductile"
git clone -q --no-hardlinks "$root" "$sys/root/ductile"
inside() { chroot "$sys" /usr/bin/env -i HOME=/root PATH=/usr/sbin:/usr/bin:/sbin:/bin sh -euc "cd /root/ductile; $1"; }

say "apt-get install make"
inside 'apt-get update -qq; DEBIAN_FRONTEND=noninteractive apt-get install -y -qq make >/dev/null'
say "make run"
inside "make run ARGS='${RUN_ARGS:-}'"
inside 'test -s runs/bible/run/loss.svg'

say "corpus without /usr/share/doc, as in minimal images"
inside 'mv /usr/share/doc/jargon-text /root/jargon-text
    rc=0
    examples/bible/prepare.sh /root/slim || rc=$?
    mv /root/jargon-text /usr/share/doc/jargon-text
    [ $rc = 0 ]
    for f in train.jsonl eval.jsonl train.txt; do cmp /root/slim/$f runs/bible/corpus/$f; done
    rm -rf /root/slim'

if [ -n "${TESTS:-}" ]; then
    say "make test-deps, build of $TESTS"
    inside "make test-deps; cmake -B build-test -G Ninja >/dev/null; ninja -C build-test $TESTS"
else
    say "make test"
    inside 'make test'
fi
say "all of it worked"
