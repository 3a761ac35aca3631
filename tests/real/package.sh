#!/bin/bash
# The life of our Debian package: built on a Debian, then installed, used, upgraded, removed and purged on another one
# that has no more than a new Debian has. What cannot be had (a mirror, pip's index) is said, and skips the rest.
name="the package's life"
packages=ca-certificates
# shellcheck source=tests/fresh/machine.sh
. "$(dirname "$0")/../fresh/machine.sh"

fail() {
    echo "FAULT: $*"
    exit 1
}

# inside COMMAND...: as root, on the machine in $root.
inside() {
    local settings
    find_settings
    env -i "${settings[@]}" DEBIAN_FRONTEND=noninteractive LC_ALL=C.UTF-8 HOME=/root \
        PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin chroot "$root" "$@"
}

# As an ordinary account there.
someone() {
    inside env -i HOME=/home/someone USER=someone LOGNAME=someone PATH=/usr/bin:/bin \
        setpriv --reuid=someone --regid=someone --init-groups --reset-env "$@"
}

apt() {
    inside apt-get -qq -o Dpkg::Use-Pty=0 -o Acquire::Retries=3 "$@"
}

ask_index() {
    inside pip --quiet download --dest "/srv/$SECONDS" --no-cache-dir --no-deps \
        --requirement /srv/source/debian/bundled.txt 'argparse-manpage >= 4' || skip "pip's index cannot be had"
}

build() {
    # shellcheck disable=SC2016  # apt-get's words
    inside sh -ec 'mkdir /srv/source; tar --extract --no-same-owner --directory /srv/source --file /srv/tree.tar'
    # Not by build-dep, which would bring compilers along: nothing is compiled.
    local wanted
    mapfile -t wanted < <(sed -n '/^Build-Depends:/,/^[^ ]/s/^ \([a-z0-9-]*\).*/\1/p' "$tree/debian/control")
    apt --no-install-recommends install git make dpkg-dev fakeroot "${wanted[@]}" >/dev/null ||
        skip "what builds it cannot be had from the mirror"
    ask_index
    inside sh -ec 'cd /srv/source; git init --quiet; git add --force --all; make deb DEB_OPTIONS=--no-check-builddeps' >&2 ||
        { ask_index && fail "make deb ended with an error"; }
    mv "$root"/srv/source/build/deb/*.deb "$folder/"
}

# The same package with a later version.
build_next() {
    dpkg-deb --raw-extract "$folder"/jobmanager-samgrid_*_all.deb "$folder/next"
    sed -i 's/^Version: .*/&+next/' "$folder/next/DEBIAN/control"
    dpkg-deb --root-owner-group --build "$folder/next" "$root/srv/next.deb" >/dev/null
    rm -r "$folder/next"
}

run_grid_job() {
    someone sh -c 'echo "&(samgrid_type=command)(executable=/bin/true)(count=2)" | samgrid run -' ||
        fail "samgrid run ended with $?"
}

check_installed() {
    local path
    someone samgrid --version
    for path in /usr/share/man/man1/samgrid.1.gz /usr/share/bash-completion/completions/samgrid \
        /usr/share/zsh/vendor-completions/_samgrid /usr/share/fish/vendor_completions.d/samgrid.fish \
        /lib/systemd/system/samgrid-scheduler-event-generator@.service /usr/lib/tmpfiles.d/jobmanager-samgrid.conf \
        /usr/share/doc/jobmanager-samgrid/event-files.md /usr/share/doc/jobmanager-samgrid/grafana.json /var/lib/samgrid; do
        inside test -e "$path" || fail "there is no $path"
    done
    inside getent passwd samgrid-events >/dev/null || fail "there is no account samgrid-events"
    # shellcheck disable=SC2016  # dpkg's words
    [[ $(inside dpkg-query --show --showformat '${Conffiles}' jobmanager-samgrid) == *" /etc/samgrid/samgrid.toml "* ]] ||
        fail "/etc/samgrid/samgrid.toml is no conffile"
    inside zgrep --quiet "^[.]nf" /usr/share/man/man1/samgrid.1.gz || fail "the manual page fills the lines of examples"
    # shellcheck disable=SC2016  # of the shell there
    someone bash -c '. /usr/share/bash-completion/completions/samgrid && complete -p samgrid' >/dev/null ||
        fail "bash completes nothing"
}

live() {
    cp "$folder"/jobmanager-samgrid_*_all.deb "$root/srv/first.deb"
    inside useradd --create-home someone
    apt update >/dev/null || skip "the mirror gives no lists"
    apt --no-install-recommends --download-only install /srv/first.deb >/dev/null ||
        skip "what it depends on cannot be had from the mirror"
    apt --no-install-recommends install /srv/first.deb >&2 || fail "it cannot be installed"
    check_installed
    run_grid_job

    echo '# of the site' | inside tee --append /etc/samgrid/samgrid.toml >/dev/null
    build_next
    apt install /srv/next.deb >&2 || fail "it cannot be upgraded"
    inside grep -q '^# of the site' /etc/samgrid/samgrid.toml || fail "the upgrade has lost the site's configuration"
    [ "$(someone samgrid status --format json | grep -c '"state": "done"')" = 1 ] || fail "the upgrade has lost a grid job"
    run_grid_job

    inside samgrid gram install >&2 || fail "GRAM's files cannot be installed"
    apt remove jobmanager-samgrid >&2 || fail "it cannot be removed"
    inside test -e /etc/samgrid/samgrid.toml || fail "its removal has removed the site's configuration"
    inside sh -c '! ls -d /usr/lib/jobmanager-samgrid /usr/bin/samgrid* 2>/dev/null' || fail "its removal has left these"
    inside sh -c '! find /etc/grid-services /etc/globus /usr/share/perl5 /usr/share/globus -name "*samgrid*" 2>/dev/null | grep .' ||
        fail "its removal has left these to GRAM"
    apt purge jobmanager-samgrid >&2 || fail "it cannot be purged"
    inside sh -c '! ls -d /etc/samgrid /var/lib/samgrid 2>/dev/null' || fail "purging has left these"
    inside test -e /home/someone/.local/state/samgrid/jobs.db || fail "purging has removed the state of an account"
}

run_inside() {
    folder=${root%/*}
    (install_debian) >&2 || skip "debootstrap cannot make a Debian here"
    cp --archive "$root" "$folder/clean"
    furnish_machine
    apt update >/dev/null || skip "the mirror gives no lists"
    build
    echo "built in $SECONDS s: $(basename "$folder"/*.deb)"
    root=$folder/clean
    furnish_machine
    live
    echo "installed, upgraded, removed and purged in $SECONDS s"
}

start_machine "$@"
