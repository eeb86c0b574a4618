#!/usr/bin/env bash
# One command for each GPU of a host, side by side: each sees its own GPU and has its own share of the
# cores, so that comparisons do not meet. Output in $OUT/lane0.txt and so on; the worst exit code is
# that of the script.
#   OUT=/tmp/out benchmarks/lanes.sh \
#       'python3 -m benchmarks.h200_training --out $OUT/l0 --state /tmp/st0 --only whole' \
#       'python3 -m benchmarks.h200_training --out $OUT/l1 --state /tmp/st1 --only levers'
set -uo pipefail
cd "$(dirname "$0")/.."
: "${OUT:?set OUT to the folder for the results}"
if [ "$#" = 0 ]; then
    echo "usage: OUT=FOLDER benchmarks/lanes.sh COMMAND [COMMAND ...]" >&2
    exit 2
fi
cores=$(env -u OMP_NUM_THREADS -u OMP_THREAD_LIMIT nproc)
share=$((cores / $#))
if [ "$share" = 0 ]; then
    echo "$# lanes need $# cores, there are $cores" >&2
    exit 2
fi
mkdir -p "$OUT"
pids=() lane=0 worst=0
for command in "$@"; do
    first=$((lane * share))
    CUDA_VISIBLE_DEVICES=$lane taskset -c "$first-$((first + share - 1))" \
        bash -c "$command" >"$OUT/lane$lane.txt" 2>&1 &
    pids+=($!)
    lane=$((lane + 1))
done
for lane in "${!pids[@]}"; do
    wait "${pids[$lane]}"
    code=$?
    echo "lane $lane ended with $code: $(tail -n 1 "$OUT/lane$lane.txt")"
    [ "$code" -gt "$worst" ] && worst=$code
done
exit "$worst"
