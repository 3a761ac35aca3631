#!/bin/sh
# samgrid-report phase NAME DONE/TOTAL [UNIT]: reports the progress of a phase of this local job.
# NAME: 1 to 40 of A-Z a-z 0-9 _ . -    UNIT: up to 20 of the same    DONE, TOTAL: whole numbers
# samgrid-report output PHASE FILE...: names files in the folder output that a phase has written.
# FILE: up to 200 of A-Z a-z 0-9 _ . + = , @ % / -
# samgrid-report xml FILE: puts the XML of FILE (up to 64 KiB) into the local job's document.
# Exit code 2: wrong arguments. 1: the disk or the status file (256 KiB) is full; the end of a phase is always stored.
LC_ALL=C

# The reason comes last: people are shown the last line of a local job that failed.
misunderstood() {
    printf 'usage: samgrid-report phase NAME DONE/TOTAL [UNIT]\n       samgrid-report output PHASE FILE...\n       samgrid-report xml FILE\nsamgrid-report: %s\n' "$1" >&2
    exit 2
}

is_number() {
    case $1 in '' | *[!0-9]*) return 1 ;; esac
    [ "${#1}" -le 15 ]
}

check_name() {
    case $1 in '' | *[!A-Za-z0-9_.-]*) misunderstood "the name may not be \"$1\"" ;; esac
    [ "${#1}" -le 40 ] || misunderstood 'the name is longer than 40 characters'
}

report_outputs() {
    check_name "$1"
    phase=$1
    shift
    for file in "$@"; do
        case $file in '' | /* | *[!A-Za-z0-9_.+=,@%/-]*) misunderstood "a file may not be called \"$file\"" ;; esac
        [ "${#file}" -le 200 ] || misunderstood 'the name of a file is longer than 200 characters'
    done
    [ "$(wc -c <"$SAMGRID_STATUS")" -lt 262144 ] || exit 1
    for file in "$@"; do printf 'output %s %s\n' "$phase" "$file"; done >>"$SAMGRID_STATUS"
}

report_phase() {
    check_name "$1"
    done=${2%%/*}
    total=${2#*/}
    is_number "$done" && is_number "$total" && [ "$2" = "$done/$total" ] || misunderstood "\"$2\" is not DONE/TOTAL"
    case $3 in *[!A-Za-z0-9_.-]*) misunderstood "the unit may not be \"$3\"" ;; esac
    [ "${#3}" -le 20 ] || misunderstood 'the unit is longer than 20 characters'
    # A program that reports every event must not fill the disk, nor its stderr with messages.
    [ "$done" = "$total" ] || [ "$(wc -c <"$SAMGRID_STATUS")" -lt 262144 ] || exit 1
    printf 'phase %s %s %s%s\n' "$1" "$done" "$total" "${3:+ $3}" >>"$SAMGRID_STATUS"
}

# Each report has its own number until it is read, the newest the highest. If ten wait, the newest replaces the one before.
# A file with the final name is complete; the reader checks that it is XML.
report_xml() {
    [ -f "$1" ] || misunderstood "\"$1\" is no file"
    stem=${SAMGRID_STATUS%/*}/reports/${SAMGRID_STATUS##*/}
    stem=${stem%.status}
    umask 077
    head -c 65537 <"$1" >"$stem.$$" && size=$(wc -c <"$stem.$$") || give_up
    [ "$size" -le 65536 ] || give_up "\"$1\" is longer than 65536 bytes"
    count_waiting
    if [ "$waiting" -ge 10 ]; then
        mv -f -- "$stem.$$" "$stem.$highest.xml" || give_up
        return
    fi
    # A link, because it never replaces a report that another process of this local job makes at the same moment.
    until ln -- "$stem.$$" "$stem.$((highest + 1)).xml" 2>/dev/null; do
        [ -e "$stem.$((highest + 1)).xml" ] || give_up
        highest=$((highest + 1))
    done
    rm -f -- "$stem.$$"
}

count_waiting() {
    waiting=0
    highest=0
    for file in "$stem".*.xml; do
        number=${file#"$stem".}
        number=${number%.xml}
        is_number "$number" || continue
        waiting=$((waiting + 1))
        [ "$number" -le "$highest" ] || highest=$number
    done
}

give_up() {
    rm -f -- "$stem.$$"
    [ -z "$1" ] || misunderstood "$1"
    exit 1
}

[ -f "$SAMGRID_STATUS" ] || misunderstood 'SAMGRID_STATUS names no file: this is no local job'
if [ "$1" = output ] && [ $# -ge 3 ]; then
    shift
    report_outputs "$@"
    exit
fi
case $1$# in
phase3 | phase4) report_phase "$2" "$3" "$4" ;;
xml2) report_xml "$2" ;;
*) misunderstood 'phase with a name and DONE/TOTAL, output with a phase and files, or xml with a file are needed' ;;
esac
