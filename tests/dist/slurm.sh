#!/bin/sh
# A Slurm of Debian's packages with two nodes on this machine: slurm.sh DIR COMMAND. The daemons and the command live in
# network, mount, process and name spaces of their own, and end with the command; files lie in DIR. Needs root.
set -eu
if [ "$1" != --inside ]; then
    exec unshare --net --uts --mount --pid --fork --mount-proc --kill-child "$0" --inside "$@"
fi
dir=$2 command=$3
hostname head
ip link set lo up
ip addr add 10.78.0.1/32 dev lo
rm -rf "$dir"
mkdir -p "$dir/munge" "$dir/state"
chmod 755 "$dir"
chmod 700 "$dir/munge"
head -c 128 /dev/urandom >"$dir/munge/key"
chmod 600 "$dir/munge/key"
munged --force --socket="$dir/socket" --key-file="$dir/munge/key" --pid-file="$dir/munge/pid" \
    --log-file="$dir/munge/log" --seed-file="$dir/munge/seed" 2>"$dir/munge/out"
cat >"$dir/slurm.conf" <<END
ClusterName=test
SlurmctldHost=head(10.78.0.1)
SlurmctldPort=16817
AuthInfo=socket=$dir/socket
SlurmUser=root
StateSaveLocation=$dir/state
SlurmdSpoolDir=$dir/spool-%n
SlurmctldPidFile=$dir/slurmctld.pid
SlurmdPidFile=$dir/slurmd-%n.pid
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
SelectType=select/cons_tres
SelectTypeParameters=CR_Core
SlurmdParameters=config_overrides
MpiDefault=none
KillWait=20
NodeName=n1 NodeHostname=head NodeAddr=10.78.0.1 Port=17001 CPUs=2
NodeName=n2 NodeHostname=head NodeAddr=10.78.0.1 Port=17002 CPUs=2
PartitionName=all Nodes=ALL Default=YES MaxTime=INFINITE
END
export SLURM_CONF="$dir/slurm.conf"
slurmctld -D -i >"$dir/slurmctld.log" 2>&1 &
slurmd -D -N n1 >"$dir/slurmd-n1.log" 2>&1 &
slurmd -D -N n2 >"$dir/slurmd-n2.log" 2>&1 &
tries=0
until sinfo -h -o '%t %D' 2>/dev/null | grep -q 'idle 2'; do
    tries=$((tries + 1))
    [ $tries -lt 100 ] || { tail -n 20 "$dir"/*.log; exit 99; }
    sleep 0.2
done
code=0
sh -c "$command" || code=$?
exit $code
