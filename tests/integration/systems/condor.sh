#!/bin/bash
# A pool of HTCondor on this machine alone, everything below one folder:
#   condor.sh start DIR | stop DIR | halt DIR | resume DIR | rotate DIR
# start leaves in DIR/environment what a client needs, one VARIABLE=value a line; jobs are for the account griduser.
# halt kills the schedd, which keeps the queue, and sees to it that it stays dead until resume.
# Exit code 77, with the reason on stderr: it cannot be had here.
set -euo pipefail
umask 022

skip() {
    echo "condor.sh: $*" >&2
    exit 77
}

verb=${1:-}
case "$verb:${2:-}" in
start:/* | stop:/* | halt:/* | resume:/* | rotate:/*) dir=${2%/} ;;
*) echo "usage: condor.sh start|stop|halt|resume|rotate DIR (an absolute path)" >&2 && exit 2 ;;
esac
export CONDOR_CONFIG=$dir/condor_config
PATH=$dir/bin:$PATH
prepare=$(dirname "$0")/prepare.sh

install_patchelf() {
    command -v patchelf >/dev/null && return
    "$prepare" patchelf >"$dir/patchelf.out" 2>&1 ||
        skip "patchelf cannot be installed: $(tail -n 1 "$dir/patchelf.out")"
}

# Debian 12 has no HTCondor, and Debian 13's would replace the host's libc: apt gets a state of its own, which thinks
# that nothing is installed, and only unpacks.
fetch_packages() {
    local apt=$dir/apt
    mkdir -p "$apt"/{state/lists/partial,cache/archives/partial,etc/apt.conf.d,etc/none}
    : >"$apt/status"
    echo "deb [signed-by=/usr/share/keyrings/debian-archive-keyring.gpg] http://deb.debian.org/debian trixie main" \
        >"$apt/etc/sources.list"
    cat >"$apt/apt.conf" <<CONF
Dir::State "$apt/state";
Dir::State::status "$apt/status";
Dir::Cache "$apt/cache";
Dir::Etc "$apt/etc";
Dir::Etc::sourceparts "none";
Dir::Etc::preferencesparts "none";
APT::Sandbox::User "root";
APT::Install-Recommends "false";
Acquire::Languages "none";
CONF
    { APT_CONFIG=$apt/apt.conf apt-get -q update &&
        APT_CONFIG=$apt/apt.conf apt-get -q -y --download-only install htcondor; } >"$apt/out" 2>&1 ||
        skip "Debian 13's HTCondor cannot be fetched: $(tail -n 1 "$apt/out")"
}

# Programs with Debian 13's libraries and loader, in the host's file system, so that jobs are at home.
install_condor() {
    [ ! -e "$dir/installed" ] || return 0
    rm -rf "$dir/software" "${dir:?}/bin"
    mkdir -p "$dir/software" "$dir/bin"
    install_patchelf
    fetch_packages
    local deb file usr=$dir/software/usr
    local loader=$usr/lib64/ld-linux-x86-64.so.2 libraries=$usr/lib/x86_64-linux-gnu
    for deb in "$dir"/apt/cache/archives/*.deb; do dpkg-deb -x "$deb" "$dir/software"; done
    [ -e "$loader" ] || skip "this is no amd64 machine"
    while IFS= read -r file; do
        patchelf --print-interpreter "$file" >/dev/null 2>&1 || continue
        patchelf --set-interpreter "$loader" --force-rpath --set-rpath "$libraries:$usr/lib" "$file"
    done < <(find "$usr/bin" "$usr/sbin" "$usr/libexec/condor" -type f -name 'condor_*')
    # Only these on the clients' PATH: the folder they come from has other programs, too, for another libc.
    find "$usr/bin" "$usr/sbin" -name 'condor_*' -exec ln -s -t "$dir/bin" {} +
    rm -rf "$dir/apt"
    touch "$dir/installed"
}

find_port() {
    local port
    for port in {19618..19718}; do
        (: <"/dev/tcp/127.0.0.1/$port") 2>/dev/null || { echo "$port" && return; }
    done
    skip "no free port between 19618 and 19718"
}

write_configuration() {
    local usr=$dir/software/usr
    mkdir -p "$dir"/local/{log,spool,lock,execute,run,cred}
    chown condor: "$dir"/local "$dir"/local/{log,spool,lock,execute,run}
    chmod 1777 "$dir/local/execute"
    cat >"$CONDOR_CONFIG" <<CONF
RELEASE_DIR = $usr
BIN = $usr/bin
SBIN = $usr/sbin
LIB = $usr/lib/condor
LIBEXEC = $usr/libexec/condor
LOCAL_DIR = $dir/local
LOCK = \$(LOCAL_DIR)/lock
RUN = \$(LOCAL_DIR)/run
SEC_CREDENTIAL_DIRECTORY_KRB =
SEC_CREDENTIAL_DIRECTORY_OAUTH =
CONDOR_IDS = $(id -u condor).$(id -g condor)

DAEMON_LIST = MASTER COLLECTOR NEGOTIATOR SCHEDD STARTD
CONDOR_HOST = 127.0.0.1
NETWORK_INTERFACE = 127.0.0.1
COLLECTOR_HOST = 127.0.0.1:$(find_port)
SHARED_PORT_PORT = 0
UID_DOMAIN = samgrid.test
FILESYSTEM_DOMAIN = samgrid.test
DEFAULT_DOMAIN_NAME = samgrid.test
TRUST_UID_DOMAIN = True
SEC_DEFAULT_AUTHENTICATION = REQUIRED
SEC_DEFAULT_AUTHENTICATION_METHODS = FS
SEC_CLIENT_AUTHENTICATION_METHODS = FS
SEC_PASSWORD_DIRECTORY = $dir/local/cred
SEC_TOKEN_SYSTEM_DIRECTORY = $dir/local/cred
ALLOW_WRITE = *
ALLOW_READ = *
ALLOW_DAEMON = *
ALLOW_ADMINISTRATOR = root@\$(UID_DOMAIN) condor@\$(UID_DOMAIN)

# A hundred slots and something that is called a GPU, whatever the machine; jobs start at once, none is thrown out.
NUM_CPUS = 100
MEMORY = 100000
MACHINE_RESOURCE_GPUs = CUDA0
NUM_SLOTS_TYPE_1 = 1
SLOT_TYPE_1 = 100%
SLOT_TYPE_1_PARTITIONABLE = True
START = True
SUSPEND = False
CONTINUE = True
PREEMPT = False
KILL = False
RUNBENCHMARKS = False
WANT_SUSPEND = False
WANT_VACATE = False
PROCD_ADDRESS = $dir/local/run/procd
ENABLE_KERNEL_TUNING = False
DISCARD_SESSION_KEYRING_ON_STARTUP = False
BASE_CGROUP =
NEGOTIATOR_INTERVAL = 2
NEGOTIATOR_MIN_INTERVAL = 1
NEGOTIATOR_CYCLE_DELAY = 1
SCHEDD_INTERVAL = 5
SCHEDD_MIN_INTERVAL = 1
UPDATE_INTERVAL = 5
MASTER_BACKOFF_CONSTANT = 1
SHADOW_QUEUE_UPDATE_INTERVAL = 5
ENABLE_URL_TRANSFERS = False
JAVA =
DOCKER =

EVENT_LOG = \$(LOG)/EventLog
EVENT_LOG_FORMAT_OPTIONS = ISO_DATE UTC SUB_SECOND
EVENT_LOG_MAX_SIZE = 100000000
EVENT_LOG_MAX_ROTATIONS = 5
CONF
    cat >"$dir/environment" <<ENVIRONMENT
CONDOR_CONFIG=$CONDOR_CONFIG
PATH=$dir/bin:/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin
ENVIRONMENT
}

# Daemons are known by the program they run, jobs by the folder they were started in: none but ours.
list_processes() {
    {
        find /proc/[0-9]*/exe -maxdepth 0 -lname "$dir/software/*/condor_*"
        grep -lzs "^_CONDOR_SCRATCH_DIR=$dir/" /proc/[0-9]*/environ
    } 2>/dev/null | cut -d / -f 3 | sort -u || true
}

find_daemon() {
    local pid
    for pid in $(list_processes); do
        case $(readlink "/proc/$pid/exe" || true) in */"condor_$1") echo "$pid" ;; esac
    done
}

wait_for_schedd() {
    local deadline=$((SECONDS + 600))
    until condor_q -allusers -af ClusterId >/dev/null 2>&1; do
        [ "$SECONDS" -lt "$deadline" ] || { echo "condor.sh: the schedd does not answer" >&2 && return 1; }
        sleep 0.2
    done
}

wait_for_slots() {
    local deadline=$((SECONDS + 600))
    until [ -n "$(condor_status -af Name 2>/dev/null)" ]; do
        [ "$SECONDS" -lt "$deadline" ] || { echo "condor.sh: no slot turns up" >&2 && return 1; }
        sleep 0.2
    done
}

stop() {
    local master deadline=$((SECONDS + 30)) pid
    for master in $(find_daemon master); do
        kill -CONT "$master" && kill -QUIT "$master"
        while kill -0 "$master" 2>/dev/null && [ "$SECONDS" -lt "$deadline" ]; do sleep 0.1; done
    done
    for pid in $(list_processes); do kill -KILL "$pid" 2>/dev/null || true; done
}

start() {
    [ "$(id -u)" = 0 ] || skip "a pool whose jobs run under their owners' accounts is started by root"
    command -v dpkg-deb >/dev/null || skip "this is no Debian"
    "$prepare"
    id condor >/dev/null 2>&1 || flock /var/tmp useradd --system --no-create-home --shell /usr/sbin/nologin condor
    mkdir -p "$dir"
    chmod 755 "$dir"
    stop
    rm -rf "$dir/local" "$dir/environment"
    install_condor
    write_configuration
    (cd / && condor_master </dev/null >"$dir/master.out" 2>&1)
    wait_for_schedd
    wait_for_slots
}

case $verb in
start) start ;;
stop) stop ;;
halt)
    # The master would start another one.
    kill -STOP "$(find_daemon master)"
    kill -KILL "$(find_daemon schedd)"
    ;;
resume)
    kill -CONT "$(find_daemon master)"
    wait_for_schedd
    ;;
rotate)
    # By the names that HTCondor itself gives; its daemons, and the shadows of running jobs, see it and begin a new one.
    log=$dir/local/log/EventLog
    for number in 4 3 2 1; do
        [ ! -e "$log.$number" ] || mv "$log.$number" "$log.$((number + 1))"
    done
    [ ! -e "$log" ] || mv "$log" "$log.1"
    ;;
esac
