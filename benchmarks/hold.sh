#!/usr/bin/env bash
# A GPU machine that is held over several calls of limited time: all of them measure one frozen copy of
# the project with the variables of the first call, without which kept parity would not count.
#   OUT=/tmp/out benchmarks/hold.sh begin                     copy the project, keep the variables
#   OUT=/tmp/out benchmarks/hold.sh wheels FOLDER site        install FOLDER/*.whl in the place "site"
#   OUT=/tmp/out benchmarks/hold.sh lanes 560 LANE [LANE ...] one command a GPU, 560 s in all
# "wheels" joins two parts (NAME.whl.*a and NAME.whl.*b, of two calls) before it installs. In a lane, a
# file of bash or a command, these are known: left (seconds that are left), training STEPS [OPTION ...],
# decode STEPS [OPTION ...] (with what was installed in the place $DECODE_SITE, if that is set), look
# NAME ARGUMENTS of benchmarks.flow_steps. What a lane puts into $PLACE comes in OUT/laneN.tar.gz, which
# is written each half minute and at the end, with OUT/laneN.txt beside it.
set -uo pipefail
hold="${HOLD:-/tmp/levergate-hold}"
grace="${GRACE:-10}" # seconds that a lane has from being ended to being killed
packing=6            # seconds kept free for the last archives

# What a lane's commands may use; UNTIL, LANE, PLACE and HOLD are set for each.
left() { echo $((UNTIL - $(date +%s))); }
enough() { [ "$(left)" -ge "$1" ]; }
begins() {
    enough "$1" && return
    echo "$2 is not begun: it needs $1 s, and $(left) s are left" >&2
    return 3
}
driver() {
    local name="$1" steps="$2"
    shift 2
    begins 30 "$name $steps" || return
    python3 -m "benchmarks.$name" --out "$PLACE/$name" --state "$HOLD/$name$LANE" \
        --limit "$(left)" --only "$steps" "$@"
}
training() { driver h200_training "$@"; }
decode() {
    local place="${DECODE_SITE:+$HOLD/$DECODE_SITE}"
    PYTHONPATH="${place:-$PYTHONPATH}" driver h200_decode "$@" --shared "$HOLD/shared"
}
look() {
    local name="$1"
    shift
    if [ ! -f "$HOLD/looks/$name.json" ]; then
        begins 20 "look $name" || return
        mkdir -p "$HOLD/looks"
        timeout "$(left)" python3 -m benchmarks.flow_steps "$@" --out "$HOLD/looks/$name.part" || return
        mv "$HOLD/looks/$name.part" "$HOLD/looks/$name.json"
    fi
    cp "$HOLD/looks/$name.json" "$PLACE/"
}

usage() {
    sed -n '2,12p' "$0" >&2
    exit 2
}

begin() {
    local from
    from="$(cd "$(dirname "$0")/.." && pwd)" || exit
    if [ ! -d "$hold/tree" ]; then
        mkdir -p "$hold/copying"
        tar -C "$from" --exclude=./.venv --exclude=./.git --exclude='./.whl*' -cf - . |
            tar -C "$hold/copying" -xf - && mv "$hold/copying" "$hold/tree" || exit
    fi
    umask 077 # the variables may hold secrets
    [ -f "$hold/variables" ] || env -0 | grep -zv -e '^OUT=' -e '^SHLVL=' -e '^_=' >"$hold/variables"
}

wheels() {
    [ "$#" = 2 ] || usage
    local from="$1" kept="$hold/wheels/$2" part other whole
    for part in "$from"/*.whl.*; do
        if [ -f "$part" ] && [[ "$part" != *[ab] ]]; then
            echo "$(basename "$part"): a wheel has two parts, .*a and .*b; nothing is installed" >&2
            exit 2
        fi
    done
    mkdir -p "$kept"
    cp "$from"/*.whl* "$kept/" || exit
    for part in "$kept"/*.whl.*; do
        [ -f "$part" ] || continue # joined, or there is none
        other="${part%a}b" whole="${part%.*}"
        [[ "$part" = *b ]] && other="${part%b}a"
        if [ ! -f "$other" ]; then
            echo "$(basename "$other") is not here yet: nothing is installed, whole wheels wait for it"
            return
        fi
        cat "${part%?}a" "${part%?}b" >"$whole" && rm "$part" "$other"
    done
    python3 -m pip install -q --no-index --no-deps --no-compile --no-cache-dir --upgrade \
        --target "$hold/$2" "$kept"/*.whl
}

pack() {
    local one name
    for one in "$hold/out"/lane*/; do
        name="$(basename "$one")"
        tar -C "$hold/out" -czf "$hold/$name.part" "$name" && mv "$hold/$name.part" "$OUT/$name.tar.gz"
    done
    cp "$hold/out"/lane*.txt "$OUT/" 2>/dev/null
}

# Pack each half minute until it is ended, and leave nothing behind that holds the call's output.
keep() {
    local nap
    trap 'kill "$nap"; exit' TERM
    while true; do
        sleep 30 >/dev/null 2>&1 &
        nap=$!
        wait "$nap" && pack
    done
}

lanes() {
    [ "$#" -ge 2 ] || usage
    if [ ! -d "$hold/tree" ] || [ ! -f "$hold/variables" ]; then
        echo "nothing was begun in $hold: run '$0 begin' first" >&2
        exit 2
    fi
    local until=$(($(date +%s) + $1 - packing)) number=0 words=() saved=() one watch all code
    shift
    mapfile -d '' -t saved <"$hold/variables"
    rm -rf "$hold/out"
    rm -f "$OUT"/lane[0-9]*.txt "$OUT"/lane[0-9]*.tar.gz # of an earlier call, which had more lanes
    for one in "$@"; do
        mkdir -p "$hold/out/lane$number"
        [ -f "$one" ] && one=$(cat "$one")
        {
            declare -f left enough begins driver training decode look
            printf 'UNTIL=%s LANE=%s PLACE=%q HOLD=%q\n%s\n' \
                "$until" "$number" "$hold/out/lane$number" "$hold" "$one"
        } >"$hold/lane$number.sh"
        words+=("bash $(printf %q "$hold/lane$number.sh")")
        number=$((number + 1))
    done
    keep &
    watch=$!
    (cd "$hold/tree" && exec env -i "${saved[@]}" PYTHONUNBUFFERED=1 OUT="$hold/out" GRACE="$grace" \
        PYTHONPATH="$hold/site:$hold/site/nvidia_cutlass_dsl/dsl_packages" \
        timeout -k "$((grace + 5))" "$(($(date +%s) < until ? until - $(date +%s) + 5 : 5))" \
        benchmarks/lanes.sh "${words[@]}") &
    all=$!
    trap 'kill -TERM "$all" 2>/dev/null; kill "$watch"; wait "$all"; pack; exit 143' TERM INT
    wait "$all"
    code=$?
    kill "$watch" 2>/dev/null
    pack
    return "$code"
}

: "${OUT:?set OUT to the folder for the results}"
mkdir -p "$OUT" && OUT=$(realpath "$OUT") || exit
case "${1:-}" in
begin | wheels | lanes) "$@" ;;
*) usage ;;
esac
