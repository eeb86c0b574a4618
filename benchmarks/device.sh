#!/usr/bin/env bash
# Run the command that follows on a GPU machine without a network, from a fresh copy of the project.
# Wheels in .whl/ (pydantic, SQLAlchemy, alembic, flash-attn) are installed beside what is there;
# bundles of decided runs and a log are left in $OUT.
#   OUT=/tmp/out benchmarks/device.sh python3 cli.py ab fa2_nsplits_cap --device cuda:0 --yes
set -uo pipefail
cd "$(dirname "$0")/.."
: "${OUT:?set OUT to the folder for the results}"
site="${TMPDIR:-/tmp}/levergate-site"
if [ ! -d "$site" ]; then
    python3 -m pip install -q --no-index --no-deps --no-compile --no-cache-dir --upgrade \
        --target "$site" .whl/*.whl || exit
fi
export PYTHONPATH="$site${PYTHONPATH:+:$PYTHONPATH}" PYTHONUNBUFFERED=1
export LEVERGATE_HOME="${LEVERGATE_HOME:-${TMPDIR:-/tmp}/levergate-home}"
"$@" 2>&1 | tee -a "$OUT/log.txt"
code=${PIPESTATUS[0]}
for verdict in "$LEVERGATE_HOME"/runs/*/verdict.json; do
    [ -f "$verdict" ] || continue
    run=$(basename "$(dirname "$verdict")")
    python3 cli.py export "$run" "$OUT/$run.json" >/dev/null
done
exit "$code"
