#!/bin/sh
# samgrid-report phase NAME DONE/TOTAL [UNIT]: says how far this local job has come in one of its phases.
# NAME: 1 to 40 of A-Z a-z 0-9 _ . -    UNIT: up to 20 of the same    DONE, TOTAL: whole numbers
# Exit code 2: not understood. 1: not taken, the status file is full (256 KiB); a phase's end is always taken.
LC_ALL=C

misunderstood() {
    printf 'samgrid-report: %s\nusage: samgrid-report phase NAME DONE/TOTAL [UNIT]\n' "$1" >&2
    exit 2
}

is_number() {
    case $1 in '' | *[!0-9]*) return 1 ;; esac
    [ "${#1}" -le 15 ]
}

[ "$1" = phase ] && { [ "$#" -eq 3 ] || [ "$#" -eq 4 ]; } || misunderstood 'phase, a name and DONE/TOTAL are needed'
case $2 in '' | *[!A-Za-z0-9_.-]*) misunderstood "the name may not be \"$2\"" ;; esac
[ "${#2}" -le 40 ] || misunderstood 'the name is longer than 40 characters'
done=${3%%/*}
total=${3#*/}
is_number "$done" && is_number "$total" && [ "$3" = "$done/$total" ] || misunderstood "\"$3\" is not DONE/TOTAL"
case $4 in *[!A-Za-z0-9_.-]*) misunderstood "the unit may not be \"$4\"" ;; esac
[ "${#4}" -le 20 ] || misunderstood 'the unit is longer than 20 characters'
[ -f "$SAMGRID_STATUS" ] || misunderstood 'SAMGRID_STATUS names no file: this is no local job'

# A program that reports every event must not fill the disk; it is not worth a message each time either.
[ "$done" = "$total" ] || [ "$(wc -c <"$SAMGRID_STATUS")" -lt 262144 ] || exit 1
printf 'phase %s %s %s%s\n' "$2" "$done" "$total" "${4:+ $4}" >>"$SAMGRID_STATUS"
