# shellcheck shell=bash
# A Debian made by debootstrap ($RELEASE: bookworm, or trixie), of the packages that who sources this names, with a copy
# of this working tree. The mirror, the proxies, pip's settings and the certificates are those of the machine that this
# runs on. Everything lies in one folder and runs in namespaces of its own: no file, mount or process is left, however it
# ends.
#
# Who sources this has set `name` and `packages`, has a function `run_inside`, which finds the folder of the machine in `root`, and ends with `start_machine "$@"`.
set -euo pipefail
umask 022
PATH=$PATH:/usr/sbin:/sbin
release=${RELEASE:-bookworm}
tree=$(realpath "$(dirname "${BASH_SOURCE[0]}")/../..")

skip() {
    # shellcheck disable=SC2154
    echo "$name is skipped: $*"
    exit 0
}

find_mirror() {
    # shellcheck disable=SC2016  # apt's words
    # Not while another has apt update its lists.
    flock /var/tmp apt-get indextargets --format '$(REPO_URI) $(RELEASE)' 'Created-By: Packages' 'Component: main' |
        awk -v release="$release" '!debian && $1 ~ "/debian/?$" { debian = $1 } !other && $2 == release { other = $1 }
            END { print debian ? debian : other }'
}

# What is tracked, and what is new, as it is now.
pack_tree() {
    git -C "$tree" ls-files -z --cached --others --exclude-standard | while IFS= read -rd '' file; do
        if [ -e "$tree/$file" ] || [ -L "$tree/$file" ]; then printf '%s\0' "$file"; fi
    done | tar --create --directory "$tree" --null --files-from -
}

# show PATH: the new machine sees what this one has there, and cannot change it.
show() {
    if [ -d "$1" ]; then
        mkdir -p "$root$1"
    else
        mkdir -p "$root${1%/*}"
        [ -e "$root$1" ] || : >"$root$1"
    fi
    mount --bind "$1" "$root$1"
    mount -o remount,bind,ro "$root$1"
}

use_proxies() {
    eval "$(apt-config shell http_proxy Acquire::http::Proxy https_proxy Acquire::https::Proxy)"
    [ -z "${http_proxy-}" ] || export http_proxy
    [ -z "${https_proxy-}" ] || export https_proxy
}

install_debian() {
    use_proxies
    # No power cut matters to it: dpkg need not wait for the disk after each file.
    mkdir -p "$root/etc/dpkg/dpkg.cfg.d"
    echo force-unsafe-io >"$root/etc/dpkg/dpkg.cfg.d/unsafe-io"
    LC_ALL=C debootstrap --variant=minbase --include="$packages" "$release" "$root" "$mirror"
}

# What is in $root becomes a machine.
furnish_machine() {
    mount --bind "$root" "$root"
    mount -t proc proc "$root/proc"
    mount -t tmpfs -o mode=1777 tmpfs "$root/dev/shm"
    mount -t devpts -o newinstance,ptmxmode=0666 devpts "$root/dev/pts"
    cp /etc/hosts "$root/etc/hosts"
    "${PYTHON:-python3}" "$tree/tests/fresh/pip_settings.py" "$root" >"$root/run/paths"
    local path
    while IFS= read -r path; do show "$path"; done <"$root/run/paths"
    pack_tree >"$root/srv/tree.tar"
}

enter_machine() {
    cd "$root"
    pivot_root . .
    umount --lazy .
    cd /
    hash -r
    useradd --no-create-home someone
    rm -rf /root
    install -d -m 700 /root
    install -d -m 700 -o someone -g someone /home/someone
}

# The settings of pip and of the proxies that this machine's environment has, into the array `settings`.
find_settings() {
    mapfile -d '' settings < <(env -0 | grep -zv '^PIP_CONFIG_FILE=' |
        grep -zEi '^(pip_[a-z_]+|ssl_cert_(file|dir)|requests_ca_bundle|curl_ca_bundle|(https?|ftp|all|no)_proxy)=')
}

finish() {
    # Who is told to end twice still cleans up.
    trap '' HUP INT TERM
    [ -z "${inside-}" ] || { kill -KILL "$inside" && wait "$inside"; } 2>/dev/null || true
    rm -rf --one-file-system "$folder"
}

# Process 1 of the namespaces runs `run_inside`: what is left when it ends is killed.
start_machine() {
    mirror=${2-}
    if [ -n "$mirror" ]; then
        root=$1
        run_inside
        exit
    fi
    [ "$(id -u)" = 0 ] || skip "only root makes a machine"
    unshare --mount --pid --fork true || skip "this machine makes no namespaces"
    command -v debootstrap >/dev/null ||
        "$tree/tests/integration/systems/prepare.sh" --no-install-recommends debootstrap >&2 ||
        skip "debootstrap is not here and cannot be installed"
    mirror=$(find_mirror) || true
    [ -n "$mirror" ] || skip "apt knows no mirror of Debian here"
    folder=$(mktemp -d "${TMPDIR:-/var/tmp}/samgrid-fresh.XXXXXX")
    chmod 755 "$folder"
    unset TMPDIR
    trap finish EXIT
    # Job control: what runs in the background would ignore a keyboard's interrupt otherwise, and tests are of such
    # signals, too.
    set -m
    unshare --mount --mount-proc --pid --fork --kill-child bash "$0" "$folder/root" "$mirror" </dev/null &
    inside=$!
    wait "$inside"
}
