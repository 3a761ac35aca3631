#!/bin/bash
# PBS' commands on this machine alone: Debian has no PBS, but wrappers that speak like Torque over Slurm (package
# slurm-wlm-torque). It conflicts with SGE's client, so it is unpacked beside; Slurm is slurm.sh's, in DIR/slurm.
#   pbs.sh start DIR | stop DIR | halt DIR | resume DIR | rotate DIR
# start leaves in DIR/environment what a client needs, one VARIABLE=value a line; jobs are for the account griduser.
# The wrappers' dialect wants pbs.toml, beside this script. They have no log of their own: the queue is polled.
# Exit code 77, with the reason on stderr: it cannot be had here.
set -euo pipefail
umask 022

skip() {
    echo "pbs.sh: $*" >&2
    exit 77
}

verb=${1:-}
case "$verb:${2:-}" in
start:/* | stop:/* | halt:/* | resume:/* | rotate:/*) dir=${2%/} ;;
*) echo "usage: pbs.sh start|stop|halt|resume|rotate DIR (an absolute path)" >&2 && exit 2 ;;
esac
slurm=$(dirname "$(readlink -f "$0")")/slurm.sh

# The Perl interface and its library are of the same version as Slurm itself, as Debian has only one.
fetch_wrappers() {
    local packages="slurm-wlm-torque libslurm-perl libslurmdb-perl libslurm38" options="-q -o APT::Sandbox::User=root"
    [ ! -e "$dir/installed" ] || return 0
    rm -rf "$dir/packages" "$dir/software"
    mkdir -p "$dir/packages" "$dir/software"
    # Not while another has apt update its lists, see prepare.sh.
    # shellcheck disable=SC2086 # several words each
    (
        flock 9 && cd "$dir/packages"
        apt-get $options download $packages || { apt-get $options update && apt-get $options download $packages; }
    ) 9</var/tmp >"$dir/apt.out" 2>&1 || skip "slurm-wlm-torque cannot be fetched: $(tail -n 1 "$dir/apt.out")"
    for deb in "$dir"/packages/*.deb; do dpkg-deb -x "$deb" "$dir/software"; done
    touch "$dir/installed"
}

# The wrappers look for sbatch beside them.
link_programs() {
    local program
    mkdir -p "$dir/bin"
    for program in qsub qstat qdel qhold qrls; do ln -sfn "$dir/software/usr/bin/$program" "$dir/bin/$program"; done
    ln -sfn "$(command -v sbatch)" "$dir/bin/sbatch"
}

start() {
    [ "$(id -u)" = 0 ] || skip "a batch system whose jobs run under their owners' accounts is started by root"
    command -v apt-get dpkg-deb >/dev/null || skip "this is no Debian"
    mkdir -p "$dir"
    chmod 755 "$dir"
    rm -f "$dir/environment"
    "$slurm" start "$dir/slurm"
    fetch_wrappers
    link_programs
    local perl
    perl=$(dirname "$(find "$dir/software/usr/lib" -name Slurm.pm)")
    {
        grep -v '^PATH=' "$dir/slurm/environment"
        echo "PERL5LIB=$perl"
        echo "LD_LIBRARY_PATH=$(dirname "$(find "$dir/software/usr/lib" -name libslurm.so.38)")"
        echo "PATH=$dir/bin:/usr/local/bin:/usr/bin:/bin"
    } >"$dir/environment"
}

case $verb in
start) start ;;
*) exec "$slurm" "$verb" "$dir/slurm" ;;
esac
