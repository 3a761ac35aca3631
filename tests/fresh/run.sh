#!/bin/bash
# README's two commands on a machine that has nothing: a Debian 12 of what README names and no more, made by debootstrap,
# with a copy of this working tree for an ordinary account and one for root, and an empty HOME for each. The mirror, the
# proxies, pip's settings and the certificates are those of the machine that this runs on. Everything lies in one folder
# and runs in namespaces of its own: no file, mount or process is left, however it ends.
set -euo pipefail
umask 022
PATH=$PATH:/usr/sbin:/sbin
tree=$(realpath "$(dirname "$0")/../..")
packages=make,git,python3,python3-venv,ca-certificates

skip() {
    echo "test-fresh is skipped: $*"
    exit 0
}

find_mirror() {
    # shellcheck disable=SC2016  # apt's words
    apt-get indextargets --format '$(REPO_URI) $(RELEASE)' 'Created-By: Packages' 'Component: main' |
        awk '!debian && $1 ~ "/debian/?$" { debian = $1 } !other && $2 == "bookworm" { other = $1 }
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

install_debian() {
    eval "$(apt-config shell http_proxy Acquire::http::Proxy https_proxy Acquire::https::Proxy)"
    [ -z "${http_proxy-}" ] || export http_proxy
    [ -z "${https_proxy-}" ] || export https_proxy
    LC_ALL=C debootstrap --variant=minbase --include="$packages" bookworm "$root" "$mirror"
}

make_machine() {
    (install_debian)
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

# run_as ACCOUNT HOME
run_as() {
    local settings folder=/srv/$1/jobmanager-samgrid
    mapfile -d '' settings < <(env -0 | grep -zv '^PIP_CONFIG_FILE=' |
        grep -zEi '^(pip_[a-z_]+|ssl_cert_(file|dir)|requests_ca_bundle|curl_ca_bundle|(https?|ftp|all|no)_proxy)=')
    mkdir -p "$folder"
    tar --extract --no-same-owner --directory "$folder" --file /srv/tree.tar
    chown -R "$1:$1" "/srv/$1"
    env -i --chdir="$folder" HOME="$2" USER="$1" LOGNAME="$1" PATH=/usr/local/bin:/usr/bin:/bin:/usr/sbin:/sbin \
        "${settings[@]}" setpriv --reuid="$1" --regid="$1" --init-groups \
        sh -ec 'git init --quiet; git add --force --all; make demo; make test' 2>&1 | tee "/srv/$1/log"
}

find_closing_line() {
    grep -E '^=+ .+ in [0-9.]+s.* =+$' "/srv/$1/log" || tail -n 1 "/srv/$1/log"
}

# Process 1 of the namespaces: what is left when it ends is killed.
run_inside() {
    root=$1
    make_machine
    local made=$SECONDS ordinary failed=0
    enter_machine
    run_as someone /home/someone || failed=1
    ordinary=$SECONDS
    run_as root /root || failed=1
    echo "test-fresh: the machine was made in $made s"
    echo "test-fresh: as an ordinary account, $((ordinary - made)) s: $(find_closing_line someone)"
    echo "test-fresh: as root, $((SECONDS - ordinary)) s: $(find_closing_line root)"
    return "$failed"
}

finish() {
    [ -z "${inside-}" ] || { kill -KILL "$inside" && wait "$inside"; } 2>/dev/null || true
    rm -rf --one-file-system "$folder"
}

mirror=${2-}
if [ -n "$mirror" ]; then
    run_inside "$1"
    exit
fi

[ "$(id -u)" = 0 ] || skip "only root makes a machine"
unshare --mount --pid --fork true || skip "this machine makes no namespaces"
command -v debootstrap >/dev/null ||
    { apt-get -q update && apt-get -q -y --no-install-recommends install debootstrap; } >&2 ||
    skip "debootstrap is not here and cannot be installed"
mirror=$(find_mirror) || true
[ -n "$mirror" ] || skip "apt knows no mirror of Debian here"
folder=$(mktemp -d "${TMPDIR:-/var/tmp}/samgrid-fresh.XXXXXX")
chmod 755 "$folder"
unset TMPDIR
trap finish EXIT
# Job control: what runs in the background would ignore a keyboard's interrupt otherwise, and tests are of such signals, too.
set -m
unshare --mount --mount-proc --pid --fork --kill-child bash "$0" "$folder/root" "$mirror" </dev/null &
inside=$!
wait "$inside"
