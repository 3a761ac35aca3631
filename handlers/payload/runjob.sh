#!/bin/sh
# runjob.sh PROGRAM PHASE...: runs one local job of DØRunjob, or of a program like it, in the folder "work".
# The job files are unpacked there; PROGRAM, one of them, gets the ini file. The numbers of events in its status files,
# PHASE/events.read and PHASE/events-*.write, are reported while it runs.
# shellcheck source=/dev/null # beside this one in the work area
. ./inputs.sh
here=$PWD
program=$1
shift
ini=$here/work/runjob.ini
job=
caught=

# Pauses double, because a phase may take seconds or a day. In some shells a signal before the trap is set is lost; then
# the program's end is noticed after the first pause.
watch_phases() {
    trap 'kill "$!" 2>/dev/null; exit' TERM
    pause=1
    while kill -0 "$job" 2>/dev/null; do
        [ "$pause" -ge 60 ] || pause=$((pause * 2))
        sleep "$pause" &
        wait "$!"
        report_phases "$@"
    done
}

report_phases() {
    [ -n "$events" ] || return 0
    for phase; do
        count=0
        for file in "work/$phase/events.read" "work/$phase"/events-*.write; do
            seen=
            { read -r seen <"$file"; } 2>/dev/null
            # The number of written events counts, if there is one: these have passed the phase.
            case $seen in '' | *[!0-9]*) ;; *) count=$seen ;; esac
        done
        [ ! -d "work/$phase" ] || report "$phase" "$count" "$events" events
    done
}

unpack_job_files() {
    while IFS= read -r file; do
        case $file in /*) ;; *) file=$here/$file ;; esac
        case $file in
        *.tar | *.tar.* | *.tgz)
            message=$(tar -xof "$file" -C work 2>&1) || fail "the job file $file cannot be unpacked: $message" ;;
        *) ln -s -- "$file" "work/${file##*/}" || fail "the job file $file cannot be put into the work folder" ;;
        esac
    done <jobfiles.list
}

# Adds the values of this local job. JIM's cluster is the batch system's array, or the job itself outside of arrays.
complete_ini() {
    cat runjob.ini
    printf 'jimglobaljobid = %s\njimclusterjobid = %s\njimlocaljobid = %s\n' \
        "$SAMGRID_GRID_JOB" "${SAMGRID_LOCAL_ID%%[_.[]*}" "$SAMGRID_LOCAL_ID"
    printf 'jobname = %s-%s\n' "$SAMGRID_GRID_JOB" "$SAMGRID_INDEX"
    [ -z "$SAMGRID_EVENTS" ] || printf 'numevents = %s\nfirstevent = %s\nseed = %s\n' \
        "$SAMGRID_EVENTS" "$SAMGRID_FIRST_EVENT" "$SAMGRID_SEED"
    [ ! -s inputs.names ] || printf 'inputfiles = %s\n' "$(tr '\n' ',' <inputs.names | sed 's/,$//')"
    [ ! -d minbias ] || printf 'minbidir = %s\n' "$here/minbias"
    grep -q '^destinationpath = ' runjob.ini || printf 'destinationpath = %s\n' "$SAMGRID_OUTPUT"
}

# The overlay's files may be anywhere; the program needs them in one folder.
link_overlay() {
    [ -s minbias.list ] || return 0
    mkdir minbias || fail 'the scratch folder cannot be written'
    while IFS= read -r file; do
        ln -s -- "$file" minbias/ || fail "the file $file cannot be put into the folder of minimum-bias events"
    done <minbias.list
}

mkdir work || fail 'the scratch folder cannot be written'
unpack_job_files
link_overlay
events=$SAMGRID_EVENTS
if [ -f inputs.list ]; then
    pick_inputs
    # For reconstruction, the request may give the number of events per file.
    [ -z "$SAMGRID_EVENTS_PER_FILE" ] || events=$((SAMGRID_EVENTS_PER_FILE * $(wc -l <inputs.names)))
fi
complete_ini >"$ini" || fail "$ini cannot be written"
[ -x "work/$program" ] && [ -f "work/$program" ] || fail "the job files have no program $program: runjob_program names it"

trap 'caught=1; [ -z "$job" ] || kill -TERM "$job" 2>/dev/null' TERM INT HUP XCPU
(cd work && exec "./$program" "$ini") &
job=$!
[ -z "$caught" ] || kill -TERM "$job" 2>/dev/null
watch_phases "$@" &
watcher=$!
wait "$job"
code=$?
while [ -n "$caught" ]; do
    caught=
    wait "$job" 2>/dev/null
    # A signal interrupts wait. A second wait for an ended job gives its exit code in some shells, 127 in others.
    again=$?
    [ "$again" -eq 127 ] || code=$again
done
kill "$watcher" 2>/dev/null
wait "$watcher" 2>/dev/null
report_phases "$@"
exit "$code"
