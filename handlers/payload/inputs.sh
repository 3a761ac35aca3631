# Included by the other payloads: finds the inputs of this local job, and checks that they have not changed.
# inputs.list, beside this file, has a line "INDEX SIZE NAME" per input; a name is absolute, or relative to this folder.
# shellcheck shell=sh

# One line, because people are shown the last line only.
fail() {
    printf '%s: %s\n' "${0##*/}" "$(printf '%s' "$1" | tr -s '\n' ' ')" >&2
    exit 1
}

# report PHASE DONE TOTAL UNIT: reports progress, if samgrid-report exists.
report() {
    if command -v samgrid-report >/dev/null; then samgrid-report phase "$1" "$2/$3" "$4"; fi
}

# Writes the absolute names of this local job's inputs into inputs.names, one per line, and sets $bytes to their size.
pick_inputs() {
    bytes=0
    LC_ALL=C sed -n "s/^$SAMGRID_INDEX //p" inputs.list >inputs.sizes || fail 'inputs.list cannot be read'
    while IFS= read -r line; do
        size=${line%% *}
        input=${line#* }
        case $input in /*) ;; *) input=$PWD/$input ;; esac
        [ -f "$input" ] && [ -r "$input" ] || fail "the input $input is gone or cannot be read"
        found=$(wc -c <"$input") || fail "the input $input cannot be read"
        [ "$found" -eq "$size" ] || fail "the input $input is damaged: it has $found bytes, not $size"
        bytes=$((bytes + size))
        printf '%s\n' "$input"
    done <inputs.sizes >inputs.names || fail 'the scratch folder cannot be written'
    [ -s inputs.names ] || fail "inputs.list has no input for local job $SAMGRID_INDEX"
}
