#!/bin/bash
# Installs packages of Debian, whose daemons are not started, or makes the account griduser where there is none:
#   prepare.sh [OPTION-OF-APT...] PACKAGE... | prepare.sh
# One after another, whoever asks: apt-get update and useradd do not wait for others, but fail.
set -euo pipefail
exec 9</var/tmp
flock 9
if [ $# = 0 ]; then
    id griduser >/dev/null 2>&1 || useradd -m griduser
    exit
fi

# Debian starts daemons as soon as they are unpacked, where policy-rc.d does not forbid it.
policy=/usr/sbin/policy-rc.d
if [ ! -e "$policy" ]; then
    trap 'rm -f "$policy"' EXIT
    printf '#!/bin/sh\nexit 101\n' >"$policy"
    chmod 755 "$policy"
fi
export DEBIAN_FRONTEND=noninteractive
apt-get -q update 9<&-
apt-get -q -y --no-remove -o DPkg::Lock::Timeout=300 install "$@" 9<&-
