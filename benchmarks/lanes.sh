#!/usr/bin/env bash
# One command for each GPU of a host, side by side: each sees its own GPU (of those that are visible)
# and has its own share of the cores, so that comparisons do not meet. Output in $OUT/lane0.txt and so
# on; the worst exit code is that of the script, and ending the script ends the lanes: what is left of
# them after $GRACE seconds (10) is killed.
#   OUT=/tmp/out benchmarks/lanes.sh \
#       'python3 -m benchmarks.h200_training --out $OUT/l0 --state /tmp/st0 --only whole' \
#       'python3 -m benchmarks.h200_training --out $OUT/l1 --state /tmp/st1 --only levers'
set -uo pipefail
: "${OUT:?set OUT to the folder for the results}"
mkdir -p "$OUT"
OUT=$(realpath "$OUT")
export OUT
cd "$(dirname "$0")/.." || exit
if [ "$#" = 0 ]; then
    echo "usage: OUT=FOLDER benchmarks/lanes.sh COMMAND [COMMAND ...]" >&2
    exit 2
fi
read -r -a cores < <(python3 -c 'import os; print(*sorted(os.sched_getaffinity(0)))')
share=$((${#cores[@]} / $#))
if [ "$share" = 0 ]; then
    echo "$# lanes need $# cores, there are ${#cores[@]}" >&2
    exit 2
fi
if [ -n "${CUDA_VISIBLE_DEVICES:-}" ]; then
    IFS=, read -r -a gpus <<<"$CUDA_VISIBLE_DEVICES"
else
    read -r -a gpus < <(seq -s ' ' 0 $(($# - 1)))
fi
if [ "${#gpus[@]}" -lt "$#" ]; then
    echo "$# lanes need $# GPUs, CUDA_VISIBLE_DEVICES shows ${#gpus[@]}" >&2
    exit 2
fi
set -m # each lane is a process group of its own, which can be ended as one
pids=() worst=0
signal() {
    local pid found=1
    for pid in "${pids[@]}"; do kill "$1" -- "-$pid" 2>/dev/null && found=0; done
    return "$found"
}
end() {
    trap '' TERM INT
    local tenths=$((${GRACE:-10} * 10))
    signal -TERM
    while signal -0 && ((tenths-- > 0)); do sleep 0.1; done
    signal -KILL
    exit 143
}
trap end TERM INT
for command in "$@"; do
    lane=${#pids[@]}
    mine=$(IFS=,; echo "${cores[*]:$((lane * share)):$share}")
    CUDA_VISIBLE_DEVICES=${gpus[$lane]} taskset -c "$mine" \
        bash -c "$command" >"$OUT/lane$lane.txt" 2>&1 &
    pids+=($!)
done
for lane in "${!pids[@]}"; do
    wait "${pids[$lane]}"
    code=$?
    echo "lane $lane ended with $code: $(tail -n 1 "$OUT/lane$lane.txt")"
    [ "$code" -gt "$worst" ] && worst=$code
done
exit "$worst"
