#!/bin/bash
# Slurm (Debian's 22.05) on this machine alone, with a munged of its own, everything below one folder:
#   slurm.sh start DIR | stop DIR | halt DIR | resume DIR | rotate DIR
# start leaves in DIR/environment what a client needs, one VARIABLE=value a line; jobs are for the account griduser.
# Exit code 77, with the reason on stderr: it cannot be had here.
set -euo pipefail
umask 022

skip() {
    echo "slurm.sh: $*" >&2
    exit 77
}

fail() {
    echo "slurm.sh: $*" >&2
    exit 1
}

verb=${1:-}
case "$verb:${2:-}" in
start:/* | stop:/* | halt:/* | resume:/* | rotate:/*) dir=${2%/} ;;
*) echo "usage: slurm.sh start|stop|halt|resume|rotate DIR (an absolute path)" >&2 && exit 2 ;;
esac
export SLURM_CONF=$dir/slurm.conf
PATH=$PATH:/usr/sbin:/sbin
log=$dir/log/slurmctld.log
prepare=$(dirname "$0")/prepare.sh

install_packages() {
    # It waits for who installs them just now.
    "$prepare"
    command -v slurmctld slurmd sbatch munged mungekey >/dev/null && return
    command -v apt-get >/dev/null || skip "this is no Debian"
    "$prepare" --no-install-recommends slurm-wlm slurm-client munge >"$dir/apt.out" 2>&1 ||
        skip "Slurm cannot be installed: $(tail -n 1 "$dir/apt.out")"
}

# Each worker of pytest ("gw3") has a hundred of its own: a halted slurmctld will want the one it had.
find_port() {
    local worker=${PYTEST_XDIST_WORKER:-gw0} first port
    first=$(($1 + 100 * ${worker#gw}))
    for ((port = first; port < first + 100; port += 2)); do
        (: <"/dev/tcp/127.0.0.1/$port") 2>/dev/null || { echo "$port" && return; }
    done
    skip "no free port between $first and $port"
}

write_configuration() {
    local host
    host=$(hostname -s)
    mkdir -p "$dir"/{log,run,state,spool}
    install -d -m 700 -o munge -g munge "$dir/munge"
    install -d -m 755 -o munge -g munge "$dir/socket"
    chown slurm: "$dir"/{log,run,state}
    # slurmctld would make it 0600, which is of no use to those who read events.
    install -m 644 -o slurm -g slurm /dev/null "$log"
    cat >"$SLURM_CONF" <<CONF
ClusterName=samgrid
SlurmctldHost=$host(127.0.0.1)
SlurmctldPort=$(find_port 17816)
SlurmdPort=$(find_port 17817)
SlurmUser=slurm
AuthType=auth/munge
AuthInfo=socket=$dir/socket/munge
StateSaveLocation=$dir/state
SlurmdSpoolDir=$dir/spool
SlurmctldPidFile=$dir/run/slurmctld.pid
SlurmdPidFile=$dir/run/slurmd.pid
SlurmctldLogFile=$log
SlurmdLogFile=$dir/log/slurmd.log
SlurmctldDebug=info
LogTimeFormat=rfc5424_ms
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
MpiDefault=none
SelectType=select/cons_tres
SelectTypeParameters=CR_CPU
ReturnToService=2
MaxArraySize=1001
KillWait=2
# A hundred slots, enough memory and disk, and something that is called a GPU, whatever the machine.
GresTypes=gpu
SlurmdParameters=config_overrides
NodeName=n1 NodeHostname=$host NodeAddr=127.0.0.1 CPUs=100 RealMemory=100000 TmpDisk=1000 Gres=gpu:1
PartitionName=batch Nodes=n1 Default=YES MaxTime=INFINITE State=UP
CONF
    echo "NodeName=n1 Name=gpu File=/dev/null" >"$dir/gres.conf"
    echo "SLURM_CONF=$SLURM_CONF" >"$dir/environment"
}

# Without what the environment of a test may hold: slurmd hands it on to what it starts.
run_daemon() {
    (cd / && exec env -i PATH="$PATH" SLURM_CONF="$SLURM_CONF" "$@") </dev/null
}

start_munged() {
    [ -s "$dir/munge/key" ] || { mungekey -c -k "$dir/munge/key" && chown munge: "$dir/munge/key"; }
    run_daemon setpriv --reuid=munge --regid=munge --init-groups munged --key-file="$dir/munge/key" \
        --socket="$dir/socket/munge" --pid-file="$dir/munge/pid" --seed-file="$dir/munge/seed" \
        --log-file="$dir/munge/log" --force >"$dir/munged.out" 2>&1 ||
        fail "munged does not start: $(tail -n 1 "$dir/munged.out")"
}

start_controller() {
    run_daemon slurmctld >"$dir/slurmctld.out" 2>&1 || fail "slurmctld does not start: see $log"
    wait_until "slurmctld does not answer: see $log" scontrol ping
}

wait_for_node() {
    wait_until "the node n1 does not turn up: see $dir/log/slurmd.log" node_is_up
}

# Its state has an asterisk where it does not answer.
node_is_up() {
    [[ $(sinfo -h -n n1 -o %T) =~ ^(idle|mixed|allocated)$ ]]
}

start_node() {
    run_daemon slurmd -N n1 >"$dir/slurmd.out" 2>&1 || fail "slurmd does not start: see $dir/log/slurmd.log"
    wait_for_node
}

wait_until() {
    local complaint=$1 deadline=$((SECONDS + 600))
    shift
    until "$@" >/dev/null 2>&1; do
        [ "$SECONDS" -lt "$deadline" ] || fail "$complaint"
        sleep 0.2
    done
}

# Daemons, and the starters of jobs, are known by our configuration in their environment; jobs have it from these.
list_processes() {
    grep -lzFxs "SLURM_CONF=$SLURM_CONF" /proc/[0-9]*/environ | cut -d / -f 3 | while read -r process; do
        if is_ours "$process"; then echo "$process"; fi
    done || true
}

# Clients, such as the tests and this script, have that environment, too.
is_ours() {
    case $(readlink "/proc/$1/exe") in
    */slurmctld* | */slurmd* | */slurmstepd* | */munged*) return 0 ;;
    esac
    grep -qzs '^SLURM_JOB_ID=' "/proc/$1/environ"
}

# More than once: of jobs that are just being started, and until all have gone.
stop() {
    local pid pids deadline=$((SECONDS + 600))
    while pids=$(list_processes) && [ -n "$pids" ]; do
        [ "$SECONDS" -lt "$deadline" ] || fail "these do not end: ${pids//$'\n'/ }"
        for pid in $pids; do kill -KILL "$pid" 2>/dev/null || true; done
        sleep 0.1
    done
}

start() {
    [ "$(id -u)" = 0 ] || skip "a cluster whose jobs run under their owners' accounts is started by root"
    mkdir -p "$dir"
    chmod 755 "$dir"
    install_packages
    stop
    rm -rf "$dir"/{log,run,state,spool,munge,socket,environment,slurm.conf}
    write_configuration
    start_munged
    start_controller
    start_node
}

case $verb in
start) start ;;
stop) stop ;;
halt)
    # What it has not saved for some seconds, such as that it knows its node, would be lost.
    kill -KILL "$(cat "$dir/run/slurmctld.pid")"
    ;;
resume)
    start_controller
    wait_for_node
    ;;
rotate)
    # As logrotate does with "create": slurmctld writes to the renamed file until it is told.
    mv "$log" "$log.$(date +%s%N)"
    install -m 644 -o slurm -g slurm /dev/null "$log"
    kill -USR2 "$(cat "$dir/run/slurmctld.pid")"
    ;;
esac
