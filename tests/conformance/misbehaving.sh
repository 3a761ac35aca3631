#!/bin/sh
# Stands before each batch command: misbehaving.sh KIND COMMAND ... takes the next line of the file KIND.plan, if there
# is one, for the way in which to misbehave this time; where there is a file "down", nobody answers at all.
here=${0%/*}
kind=$1
shift
echo "$kind" >>"$here/calls"
if [ -e "$here/down" ]; then
    echo "cannot connect to the batch system" >&2
    exit 1
fi
mode=
if [ -s "$here/$kind.plan" ]; then
    read -r mode <"$here/$kind.plan"
    sed -i 1d "$here/$kind.plan"
fi
case $mode in
'' | good) exec "$@" ;;
late)
    until [ -e "$here/late" ]; do sleep 0.05; done
    exec "$@"
    ;;
hang-before) : >"$here/hangs.$$" && exec sleep 3600 ;;
hang-after) "$@" && : >"$here/hangs.$$" && exec sleep 3600 ;;
fail-before) echo "connection refused" >&2 && exit 1 ;;
fail-after) "$@" >/dev/null && echo "connection reset" >&2 && exit 1 ;;
die-before) kill -9 $$ ;;
die-after) "$@" >/dev/null && kill -9 $$ ;;
garbage-before) echo "%!@" ;;
garbage-after) "$@" >/dev/null && echo "%!@" ;;
silent-before) exit 0 ;;
silent-after) "$@" >/dev/null ;;
banner) echo "*** Maintenance on Monday! ***" && exec "$@" ;;
torn) "$@" | head -c 14 ;;
first-line) "$@" | head -n 1 ;;
*) echo "misbehaving.sh: no such way: $mode" >&2 && exit 99 ;;
esac
