#!/bin/sh
# merge.sh NAME KIND [COMMAND WORD...]: makes output/NAME, and the list output/NAME.inputs, from this local job's inputs.
# KIND plain or gzip: concatenates the files, which for gzip gives a gzip file again. command: COMMAND writes "merged".
# payload: the same, and COMMAND prints its own errors.
# shellcheck source=/dev/null # beside this one in the work area
. ./inputs.sh
bytes=0
name=$1
kind=$2
shift 2

pick_inputs
total=$(($(wc -l <inputs.names)))
report merge 0 "$total" files

if [ "$kind" = gzip ]; then
    # All of them first, so that no time is lost if one is damaged.
    while IFS= read -r input; do
        message=$(gzip -t -- "$input" 2>&1) || fail "the input $input is damaged: $message"
    done <inputs.names
fi

if [ "$kind" = command ] || [ "$kind" = payload ]; then
    "$@" || {
        code=$?
        # People are shown the last line, which the payload has printed.
        if [ "$kind" = payload ] && [ "$code" -eq 1 ]; then exit 1; fi
        fail "the merge command $1 ended with exit code $code"
    }
    [ -f merged ] || fail "the merge command $1 wrote no output"
else
    true >merged || fail 'the scratch folder cannot be written'
    done=0
    while IFS= read -r input; do
        cat -- "$input" >>merged || fail "the input $input could not be merged"
        done=$((done + 1))
        report merge "$done" "$total" files
    done <inputs.names
    [ "$(wc -c <merged)" -eq "$bytes" ] || fail "the inputs changed while they were merged: $bytes bytes were promised"
fi

# Renamed only now, so that no incomplete file is brought back.
mkdir -p output || fail 'the folder output cannot be made'
mv -- merged "output/$name" || fail "output/$name cannot be written"
mv -- inputs.sizes "output/$name.inputs" || fail "output/$name.inputs cannot be written"
report merge "$total" "$total" files
