#!/bin/bash
# README's two commands on a machine that has nothing: a Debian of what README names and no more, with a copy of this
# working tree for an ordinary account and one for root, and an empty HOME for each.
name=test-fresh
packages=make,git,python3,python3-venv,ca-certificates
# shellcheck source=tests/fresh/machine.sh
. "$(dirname "$0")/machine.sh"

# run_as ACCOUNT HOME
run_as() {
    local settings folder=/srv/$1/jobmanager-samgrid
    find_settings
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

run_inside() {
    (install_debian)
    furnish_machine
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

start_machine "$@"
