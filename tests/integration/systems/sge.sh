#!/bin/bash
# Grid Engine (Debian's 8.1.9) on this machine alone, a cell of its own below one folder:
#   sge.sh start DIR | stop DIR | halt DIR | resume DIR | rotate DIR
# start leaves in DIR/environment what a client needs, one VARIABLE=value a line; jobs are for the account griduser.
# Exit code 77, with the reason on stderr: it cannot be had here.
set -euo pipefail
umask 022

skip() {
    echo "sge.sh: $*" >&2
    exit 77
}

fail() {
    echo "sge.sh: $*" >&2
    exit 1
}

verb=${1:-}
case "$verb:${2:-}" in
start:/* | stop:/* | halt:/* | resume:/* | rotate:/*) dir=${2%/} ;;
*) echo "usage: sge.sh start|stop|halt|resume|rotate DIR (an absolute path)" >&2 && exit 2 ;;
esac
programs=/usr/lib/gridengine
common=$dir/root/default/common
host=$(hostname)
prepare=$(dirname "$0")/prepare.sh

install_packages() {
    [ ! -x "$programs/sge_qmaster" ] || [ ! -x "$programs/sge_execd" ] || [ ! -x /usr/bin/qsub ] || return 0
    command -v apt-get >/dev/null || skip "this is no Debian"
    # It conflicts with slurm-wlm-torque, which somebody may need: nothing is removed for its sake.
    "$prepare" gridengine-master gridengine-exec gridengine-client >"$dir/apt.out" 2>&1 ||
        skip "Grid Engine cannot be installed: $(tail -n 1 "$dir/apt.out")"
}

find_port() {
    local port
    for ((port = $1; port < $1 + 200; port += 2)); do
        (: <"/dev/tcp/127.0.0.1/$port") 2>/dev/null || { echo "$port" && return; }
    done
    skip "no free port between $1 and $port"
}

write_environment() {
    printf '%s\n' "SGE_ROOT=$dir/root" SGE_CELL=default "SGE_QMASTER_PORT=$(find_port 16444)" \
        "SGE_EXECD_PORT=$(find_port 16445)" >"$dir/environment"
}

load_environment() {
    [ -e "$dir/environment" ] || fail "nothing was started in $dir"
    set -a
    # shellcheck source=/dev/null
    . "$dir/environment"
    set +a
}

write_configuration() {
    local name share=/usr/share/gridengine
    mkdir -p "$common" "$dir"/spool/{qmaster/job_scripts,spooldb,execd} "$dir/tmp"
    chmod 1777 "$dir/tmp"
    for name in bin lib util utilbin; do ln -sfn "/var/lib/gridengine/$name" "$dir/root/$name"; done
    # The machine's own name may stand for its loopback address.
    echo "$host localhost" >"$common/host_aliases"
    echo "$host" >"$common/act_qmaster"
    sed "s|/var/spool/gridengine|$dir/spool|" "$share/default-bootstrap" >"$common/bootstrap"
    # With its jobs SGE kills every process of one of these groups: Slurm's daemons have 64030.
    change_lines "$share/default-configuration" "execd_spool_dir $dir/spool/execd" "mailer /bin/true" \
        "loglevel log_info" "administrator_mail none" "gid_range 70000-70999" "load_report_time 00:00:05" \
        "reporting_params accounting=true reporting=true flush_time=00:00:01 joblog=true sharelog=00:00:00" \
        >"$dir/configuration"
    chown -R sgeadmin:sgeadmin "$dir/root" "$dir/spool"
    as_admin "$programs/spoolinit" berkeleydb libspoolb "$dir/spool/spooldb" init
    as_admin "$programs/spooldefaults" configuration "$dir/configuration"
    as_admin "$programs/spooldefaults" complexes "$share/util/resources/centry"
    as_admin "$programs/spooldefaults" usersets "$share/util/resources/usersets"
    as_admin "$programs/spooldefaults" managers sgeadmin root
}

# A file of lines "NAME VALUE" with the values of the given lines.
change_lines() {
    local file=$1 line
    local -a script=()
    shift
    for line in "$@"; do script+=(-e "s|^${line%% *}[[:space:]].*|$line|"); done
    sed "${script[@]}" "$file"
}

as_admin() {
    setpriv --reuid=sgeadmin --regid=sgeadmin --clear-groups "$@" >>"$dir/setup.out" 2>&1
}

# Daemons and shepherds are known by the folder they run in, jobs by what they were told: none but ours.
list_processes() {
    {
        find /proc/[0-9]*/cwd -maxdepth 0 -lname "$dir/spool/*"
        grep -lzs "^SGE_JOB_SPOOL_DIR=$dir/" /proc/[0-9]*/environ
    } 2>/dev/null | cut -d / -f 3 | sort -u || true
}

find_daemon() {
    local pid
    for pid in $(list_processes); do
        case $(readlink "/proc/$pid/exe" || true) in */"sge_$1") echo "$pid" ;; esac
    done
}

# SGE_ND: it stays in the foreground. Jobs get the environment of the execution daemon, which is not to be ours.
run_daemon() {
    env -i SGE_ND=1 SGE_ROOT="$SGE_ROOT" SGE_CELL="$SGE_CELL" SGE_QMASTER_PORT="$SGE_QMASTER_PORT" \
        SGE_EXECD_PORT="$SGE_EXECD_PORT" PATH=/usr/local/bin:/usr/bin:/bin setsid "$@" </dev/null &
}

start_qmaster() {
    run_daemon setpriv --reuid=sgeadmin --regid=sgeadmin --clear-groups "$programs/sge_qmaster" \
        >>"$dir/qmaster.out" 2>&1
    wait_until "the qmaster does not answer: see $dir/qmaster.out" qconf -sh
}

start_execd() {
    run_daemon "$programs/sge_execd" >>"$dir/execd.out" 2>&1
    wait_until "no execution daemon turns up: see $dir/execd.out" host_reports
}

host_reports() {
    # A load that is told, and not "-".
    qhost -h "$host" | awk -v host="$host" '$1 == host && $7 != "-" { found = 1 } END { exit !found }'
}

wait_until() {
    local complaint=$1 deadline=$((SECONDS + 600))
    shift
    until "$@" >/dev/null 2>&1; do
        [ "$SECONDS" -lt "$deadline" ] || fail "$complaint"
        sleep 0.2
    done
}

# A hundred slots whatever the machine and its load; jobs start and end without waiting for the scheduler's interval.
configure_cluster() {
    qconf -ssconf >"$dir/scheduler.old"
    change_lines "$dir/scheduler.old" "flush_submit_sec 1" "flush_finish_sec 1" "schedule_interval 0:0:2" \
        >"$dir/scheduler"
    printf 'group_name @allhosts\nhostlist %s\n' "$host" >"$dir/hosts"
    printf '%s\n' "pe_name smp" "slots 100" "user_lists NONE" "xuser_lists NONE" "start_proc_args NONE" \
        "stop_proc_args NONE" "allocation_rule \$pe_slots" "control_slaves FALSE" "job_is_first_task TRUE" \
        "urgency_slots min" "accounting_summary FALSE" "qsort_args NONE" >"$dir/parallel"
    qconf -sq >"$dir/queue.old"
    change_lines "$dir/queue.old" "qname all.q" "hostlist @allhosts" "slots 100" "load_thresholds NONE" \
        "pe_list smp" "shell /bin/sh" "shell_start_mode unix_behavior" "tmpdir $dir/tmp" >"$dir/queue"
    { qconf -Msconf "$dir/scheduler" && qconf -as "$host" && qconf -Ahgrp "$dir/hosts" &&
        qconf -Ap "$dir/parallel" && qconf -Aq "$dir/queue"; } \
        >>"$dir/setup.out" 2>&1 || fail "the cluster cannot be configured: $(tail -n 1 "$dir/setup.out")"
}

start() {
    [ "$(id -u)" = 0 ] || skip "a cluster whose jobs run under their owners' accounts is started by root"
    "$prepare"
    mkdir -p "$dir"
    chmod 755 "$dir"
    stop
    install_packages
    rm -rf "$dir"/{root,spool,tmp} "$dir"/{environment,setup.out,qmaster.out,execd.out}
    write_environment
    load_environment
    write_configuration
    start_qmaster
    configure_cluster
    start_execd
}

# The qmaster first: it would see its jobs die.
stop() {
    local pid
    for pid in $(find_daemon qmaster) $(list_processes); do kill -KILL "$pid" 2>/dev/null || true; done
    # Jobs that were just being started when the list was made.
    for pid in $(list_processes); do kill -KILL "$pid" 2>/dev/null || true; done
}

case $verb in
start) start ;;
stop) stop ;;
halt)
    for pid in $(find_daemon qmaster); do kill -KILL "$pid"; done
    ;;
resume)
    load_environment
    [ -n "$(find_daemon qmaster)" ] || start_qmaster
    ;;
rotate)
    # The qmaster opens it anew at each flush.
    mv "$common/reporting" "$common/reporting.$(date +%s%N)"
    ;;
esac
