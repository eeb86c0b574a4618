#!/usr/bin/env bash
# A GPU machine that is held over several calls of limited time: all of them measure one frozen copy of
# the project with the variables of the first call, without which kept parity would not count.
#   OUT=/tmp/out benchmarks/hold.sh begin                     copy the project, keep the variables
#   OUT=/tmp/out benchmarks/hold.sh wheels FOLDER site        install FOLDER/*.whl in the place "site"
#   OUT=/tmp/out benchmarks/hold.sh lanes 560 LANE [LANE ...] one command a GPU, 560 s in all
# "wheels" joins parts (NAME.whl.*a and NAME.whl.*b, of two calls) before it installs. In a lane, a file
# of bash or a command, these are known: left (seconds for what follows), training STEPS [OPTION ...],
# decode STEPS [OPTION ...], look NAME ARGUMENTS of benchmarks.flow_steps. What lanes leave comes in
# OUT/laneN.tar.gz, written again each half minute, with OUT/laneN.txt beside it.
set -uo pipefail
hold="${HOLD:-/tmp/levergate-hold}"
packing=6 # seconds kept free for the last archives

# What a lane's commands may use; TREE, LANE, PLACE and UNTIL are set for each.
left() { echo $((UNTIL - $(date +%s))); }
enough() { [ "$(left)" -ge "$1" ]; }
driver() {
    local name="$1" steps="$2"
    shift 2
    enough 30 || return 3
    python3 -m "benchmarks.$name" --out "$PLACE/$name" --state "$HOLD/$name$LANE" \
        --limit "$(left)" --only "$steps" "$@"
}
training() { driver h200_training "$@"; }
decode() { PYTHONPATH="${DECODE_SITE:-$PYTHONPATH}" driver h200_decode "$@" --shared "$HOLD/shared"; }
look() {
    local name="$1"
    shift
    [ -f "$HOLD/looks/$name.json" ] && return
    mkdir -p "$HOLD/looks"
    timeout "$(left)" python3 -m benchmarks.flow_steps "$@" --out "$HOLD/looks/$name.part" &&
        mv "$HOLD/looks/$name.part" "$HOLD/looks/$name.json"
    cp "$HOLD/looks/$name".* "$PLACE/"
}

begin() {
    mkdir -p "$hold"
    [ -d "$hold/tree" ] || cp -r "$(cd "$(dirname "$0")/.." && pwd)" "$hold/tree"
    env -0 | grep -zv -e '^OUT=' -e '^SHLVL=' -e '^_=' >"$hold/variables"
}

wheels() {
    local from="$1" into="$hold/$2" whole
    mkdir -p "$hold/wheels/$2"
    cp "$from"/*.whl* "$hold/wheels/$2/"
    for part in "$hold/wheels/$2"/*a; do
        [ -f "$part" ] || continue
        whole="${part%.*}"
        [ -f "${part%a}b" ] || return 0
        cat "$part" "${part%a}b" >"$whole" && rm "$part" "${part%a}b"
    done
    python3 -m pip install -q --no-index --no-deps --no-compile --no-cache-dir --upgrade \
        --target "$into" "$hold/wheels/$2"/*.whl
}

pack() { for one in "$hold/out"/lane*/; do tar -C "$hold/out" -czf "$OUT/$(basename "$one").tar.gz" "$(basename "$one")"; done; }

lanes() {
    local until=$(($(date +%s) + $1 - packing)) number=0 words=() saved=() one
    shift
    mapfile -d '' -t saved <"$hold/variables"
    rm -rf "$hold/out"
    for one in "$@"; do
        mkdir -p "$hold/out/lane$number"
        [ -f "$one" ] && one=$(cat "$one")
        { declare -f left enough driver training decode look
          printf 'UNTIL=%s LANE=%s PLACE=%q HOLD=%q\n%s\n' \
              "$until" "$number" "$hold/out/lane$number" "$hold" "$one"; } >"$hold/lane$number.sh"
        words+=("bash $hold/lane$number.sh")
        number=$((number + 1))
    done
    (while sleep 30; do cp "$hold/out"/lane*.txt "$OUT/"; pack; done) &
    local watch=$!
    (cd "$hold/tree" && exec env -i "${saved[@]}" PYTHONUNBUFFERED=1 OUT="$hold/out" \
        PYTHONPATH="$hold/site:$hold/site/nvidia_cutlass_dsl/dsl_packages" \
        timeout -k 10 "$(($(date +%s) < until ? until - $(date +%s) + 5 : 5))" \
        benchmarks/lanes.sh "${words[@]}")
    local code=$?
    kill "$watch" 2>/dev/null
    cp "$hold/out"/lane*.txt "$OUT/"
    pack
    return "$code"
}

: "${OUT:?set OUT to the folder for the results}"
case "${1:-}" in
begin | wheels | lanes) "$@" ;;
*)
    sed -n '2,11p' "$0" >&2
    exit 2
    ;;
esac
