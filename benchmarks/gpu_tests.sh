#!/usr/bin/env bash
# The device tests in named groups side by side, then those that assert times, alone. Each group ends
# in good order at its limit and says what it did not run. Left in $OUT: gpu_tests.txt (each line
# begins with its group) and gpu_tests.json (by group: counts, failures with reasons, what was not run).
#   OUT=/tmp/out benchmarks/device.sh benchmarks/gpu_tests.sh
#   OUT=/tmp/out LIMIT=60 benchmarks/device.sh benchmarks/gpu_tests.sh rows flow timing
set -uo pipefail
cd "$(dirname "$0")/.."
: "${OUT:?set OUT to the folder for the results}"
LIMIT="${LIMIT:-150}"               # seconds of the groups, which begin together
TIMING_LIMIT="${TIMING_LIMIT:-200}" # seconds of the times
GRACE="${GRACE:-45}"                # for the test that runs at the limit; then it is interrupted

declare -A FILES=(
    [rows]="row_kernels residual_norm"
    [products]="qk_mlp linear_grads"
    [eight]="fp8 mlp_epilogue"
    [dense]="ss_flow"
    [packed]="slat_flow"
    [decode]="decode decode_attn decode_oracle attention"
    [fused]="fused_decode mxfp4 decode_cases"
    [reports]="op_work reports ranks"
    [sanitizers]="sanitizers"
)
GROUPS_IN_ORDER="rows products eight dense packed decode fused reports sanitizers timing"

text="$OUT/gpu_tests.txt"
outcome="$OUT/gpu_tests.json"
rm -f "$text" "$outcome"

# group SECONDS MARKER NAME...: one process of pytest over the files of those names.
group() {
    local name="$1" limit="$2" marker="$3" paths=() file
    shift 3
    for file in "$@"; do paths+=("tests/gpu/test_${file}_gpu.py"); done
    timeout -s INT -k 15 "$((limit + GRACE))" python3 -m pytest -m "$marker" -p no:cacheprovider \
        --tb=short --show-capture=no --durations=8 -s --stop-after "$limit" --outcome "$outcome" \
        --group "$name" "${paths[@]}" 2>&1 | sed -u "s/^/[$name] /" >>"$text"
    return "${PIPESTATUS[0]}"
}

# report NAMES: what the groups of a pattern came to.
report() {
    grep -aE "^\\[($1)\\] (=* ?[0-9]+ (passed|failed|skipped|error)|because|not run|!!)" "$text"
}

read -r -a wanted <<<"${*:-$GROUPS_IN_ORDER}"
failed=0 pids=() timing=0
for name in "${wanted[@]}"; do
    if [ "$name" = timing ]; then
        timing=1
    elif [ -n "${FILES[$name]:-}" ]; then
        # shellcheck disable=SC2086 # the names of a group are words
        group "$name" "$LIMIT" "not timing" ${FILES[$name]} &
        pids+=($!)
    else
        echo "no group '$name'; there are: $GROUPS_IN_ORDER" >&2
        exit 2
    fi
done
for pid in "${pids[@]}"; do wait "$pid" || failed=1; done
[ "${#pids[@]}" = 0 ] || report "[a-z]+"
if [ "$timing" = 1 ]; then
    # shellcheck disable=SC2048,SC2086
    group timing "$TIMING_LIMIT" timing ${FILES[*]} || failed=1
    report timing
fi
exit "$failed"
