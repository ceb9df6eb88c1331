#!/bin/sh
# Machines made of network namespaces, for tests that run as root: machines.sh up NAME COUNT | down NAME COUNT | on NAME K CMD...
# Machine K is the namespace NAMEmK with host name machineK and the address 10.77.0.K on a switch that machine 1 holds; device
# e0 leads there (s0 on machine 1). Each has an address besides, 192.0.2.K, on which nobody is meant to listen. Devices
# are born inside the namespaces: nothing of this is seen, or left, on the machine itself.
set -eu
what=$1 name=$2 count=$3

up() {
    for k in $(seq "$count"); do
        ip netns add "${name}m$k"
        ip -n "${name}m$k" link set lo up
        ip -n "${name}m$k" addr add "192.0.2.$k/32" dev lo
    done
    ip -n "${name}m1" link add s0 type bridge
    ip -n "${name}m1" addr add 10.77.0.1/24 dev s0
    ip -n "${name}m1" link set s0 up
    for k in $(seq 2 "$count"); do
        ip -n "${name}m1" link add "p$k" type veth peer name e0 netns "${name}m$k"
        ip -n "${name}m1" link set "p$k" master s0 up
        ip -n "${name}m$k" addr add "10.77.0.$k/24" dev e0
        ip -n "${name}m$k" link set e0 up
    done
}

case $what in
up) up ;;
down) for k in $(seq "$count"); do ip netns del "${name}m$k" 2>/dev/null || true; done ;;
on)
    k=$count
    shift 3
    exec ip netns exec "${name}m$k" unshare --uts sh -c "hostname machine$k; exec \"\$@\"" sh "$@"
    ;;
*) exit 2 ;;
esac
