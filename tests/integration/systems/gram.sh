#!/bin/bash
# GRAM5 (Debian's) on this machine alone, with a certificate authority of its own, everything below one folder but what
# Globus has fixed places for (/etc/grid-services, /etc/grid-security/certificates, /var/lib/globus/gram_job_state,
# /var/log/globus, ~griduser/.globus):
#   gram.sh install DIR | start DIR | stop DIR
# install only installs the packages, which start does, too. start leaves in DIR/environment what a client needs, one
# VARIABLE=value a line; clients, and jobs, are griduser's.
# Exit code 77, with the reason on stderr: it cannot be had here.
set -euo pipefail
umask 022

skip() {
    echo "gram.sh: $*" >&2
    exit 77
}

fail() {
    echo "gram.sh: $*" >&2
    exit 1
}

verb=${1:-}
case "$verb:${2:-}" in
install:/* | start:/* | stop:/*) dir=${2%/} ;;
*) echo "usage: gram.sh install|start|stop DIR (an absolute path)" >&2 && exit 2 ;;
esac
PATH=$PATH:/usr/sbin:/sbin
certificates=$dir/certificates
trusted=/etc/grid-security/certificates
log=$dir/gatekeeper.log
fork=/etc/grid-services/jobmanager-samgrid-test-fork
name='/O=samgrid/OU=test'
prepare=$(dirname "$0")/prepare.sh

install_packages() {
    # It waits for who installs them just now.
    [ "$(id -u)" != 0 ] || "$prepare"
    command -v openssl globus-gatekeeper globus-job-manager globusrun globus-job-run globus-url-copy grid-proxy-init \
        globus-gass-cache globus-scheduler-event-generator globus-rvf-check >/dev/null &&
        [ -e /usr/share/perl5/Globus/GRAM/JobManager/fork.pm ] && return
    command -v apt-get >/dev/null || skip "this is no Debian"
    [ "$(id -u)" = 0 ] || skip "packages are installed by root"
    mkdir -p "$dir"
    "$prepare" --no-install-recommends openssl \
        globus-gatekeeper globus-gram-job-manager globus-gram-job-manager-scripts globus-gram-job-manager-fork \
        globus-gram-client-tools globus-proxy-utils globus-gsi-cert-utils-progs globus-gass-copy-progs \
        globus-gass-cache-program globus-scheduler-event-generator-progs >"$dir/apt.out" 2>&1 ||
        skip "GRAM cannot be installed: $(tail -n 1 "$dir/apt.out")"
}

find_port() {
    local port
    for ((port = $1; port < $1 + 200; port++)); do
        (: <"/dev/tcp/127.0.0.1/$port") 2>/dev/null || { echo "$port" && return; }
    done
    skip "no free port between $1 and $port"
}

make_authority() {
    mkdir -p "$certificates" "$dir/private"
    chmod 700 "$dir/private"
    openssl req -x509 -newkey rsa:2048 -nodes -days 30 -subj "$name/CN=authority" \
        -keyout "$dir/private/authority.key" -out "$certificates/authority.pem" 2>>"$dir/openssl.out"
    local hash
    hash=$(openssl x509 -noout -hash -in "$certificates/authority.pem")
    ln -s authority.pem "$certificates/$hash.0"
    cat >"$certificates/$hash.signing_policy" <<POLICY
access_id_CA X509 '$name/CN=authority'
pos_rights globus CA:sign
cond_subjects globus '"/O=samgrid/*"'
POLICY
    # Who copies files to a client has no X509_CERT_DIR, and looks here.
    mkdir -p "$trusted"
    ln -sf "$certificates/$hash".* "$trusted"
}

# make_certificate NAME COMMON-NAME [EXTENSION]
make_certificate() {
    openssl req -newkey rsa:2048 -nodes -subj "$name/CN=$2" \
        -keyout "$dir/private/$1.key" -out "$dir/private/$1.request" 2>>"$dir/openssl.out"
    openssl x509 -req -days 30 -in "$dir/private/$1.request" -out "$dir/$1.pem" \
        -CA "$certificates/authority.pem" -CAkey "$dir/private/authority.key" -CAcreateserial \
        -extfile <(printf 'basicConstraints=CA:FALSE\n%s\n' "${3:-}") 2>>"$dir/openssl.out"
}

make_credentials() {
    make_certificate host localhost subjectAltName=DNS:localhost
    make_certificate griduser griduser
    chown griduser "$dir/griduser.pem"
    install -m 400 -o griduser "$dir/private/griduser.key" "$dir/griduser.key"
    echo "\"$name/CN=griduser\" griduser" >"$dir/grid-mapfile"
    # The proxy is written into a folder of the account's own.
    install -d -m 700 -o griduser -g griduser "$dir/proxy"
    setpriv --reuid=griduser --regid=griduser --init-groups env -i PATH="$PATH" HOME=/ \
        X509_CERT_DIR="$certificates" grid-proxy-init -q -valid 24:00 \
        -cert "$dir/griduser.pem" -key "$dir/griduser.key" -out "$dir/proxy/proxy" >"$dir/proxy.out" 2>&1 ||
        fail "no proxy: $(tail -n 1 "$dir/proxy.out")"
}

# GRAM's own job manager, to compare with, under a name that no site has.
enable_fork() {
    # The gatekeeper's package made it; somebody may have cleaned up since.
    mkdir -p "${fork%/*}/available"
    echo "stderr_log,local_cred - /usr/sbin/globus-job-manager globus-job-manager" \
        "-conf /etc/globus/globus-gram-job-manager.conf -type fork" >"$fork"
}

start_gatekeeper() {
    local port
    port=$(find_port 17119)
    # What it has in its environment, every job has.
    (cd / && exec env -i PATH=/usr/local/bin:/usr/bin:/bin:/usr/sbin:/sbin GLOBUS_HOSTNAME=localhost \
        X509_CERT_DIR="$certificates" globus-gatekeeper -p "$port" -l "$log" -pidfile "$dir/pid" \
        -gridmap "$dir/grid-mapfile" -x509_user_cert "$dir/host.pem" -x509_user_key "$dir/private/host.key") \
        </dev/null >"$dir/gatekeeper.out" 2>&1 || fail "the gatekeeper does not start: see $dir/gatekeeper.out, $log"
    cat >"$dir/environment" <<ENVIRONMENT
X509_CERT_DIR=$certificates
X509_USER_PROXY=$dir/proxy/proxy
GLOBUS_HOSTNAME=localhost
GATEKEEPER=localhost:$port
ENVIRONMENT
    wait_until "the gatekeeper does not listen: see $log" is_listening "$port"
}

is_listening() {
    (: <"/dev/tcp/127.0.0.1/$1") 2>/dev/null
}

wait_until() {
    local complaint=$1 deadline=$((SECONDS + 600))
    shift
    until "$@" >/dev/null 2>&1; do
        [ "$SECONDS" -lt "$deadline" ] || fail "$complaint"
        sleep 0.1
    done
}

# The gatekeeper, GRAM's job managers and their interpreters: known by the place of our certificates.
list_processes() {
    grep -lzFxs "X509_CERT_DIR=$certificates" /proc/[0-9]*/environ | cut -d / -f 3 | while read -r process; do
        if is_ours "$process"; then echo "$process"; fi
    done || true
    [ ! -s "$dir/pid" ] || ! [[ $(readlink "/proc/$(cat "$dir/pid")/exe") = */globus-gatekeeper* ]] || cat "$dir/pid"
    return 0
}

# Clients, jobs and the tests have that environment, too.
is_ours() {
    case $(readlink "/proc/$1/exe") in
    */globus-gatekeeper* | */globus-job-manager*) return 0 ;;
    */perl*) grep -qzs 'globus-job-manager-script' "/proc/$1/cmdline" ;;
    *) return 1 ;;
    esac
}

stop() {
    local pid pids deadline=$((SECONDS + 600))
    while pids=$(list_processes) && [ -n "$pids" ]; do
        [ "$SECONDS" -lt "$deadline" ] || fail "these do not end: ${pids//$'\n'/ }"
        for pid in $pids; do kill -KILL "$pid" 2>/dev/null || true; done
        sleep 0.1
    done
    rm -f "$fork"
    # What is left of jobs would be taken up by the next job managers of this account, for ever.
    rm -rf /var/lib/globus/gram_job_state/griduser ~griduser/.globus/job
    [ ! -d "$trusted" ] || find "$trusted" -type l -lname "$certificates/*" -delete -o -type d -empty -delete
}

start() {
    [ "$(id -u)" = 0 ] || skip "a gatekeeper that starts jobs under their owners' accounts is started by root"
    mkdir -p "$dir"
    chmod 755 "$dir"
    install_packages
    stop
    rm -rf "$dir"/{certificates,private,proxy,environment,pid,grid-mapfile,*.pem,*.key,*.log,*.out}
    make_authority
    make_credentials
    enable_fork
    start_gatekeeper
}

case $verb in
install) install_packages ;;
start) start ;;
stop) stop ;;
esac
