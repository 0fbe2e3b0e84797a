#!/usr/bin/env bash
# Bring a packed set up to date: this week's files join it, as a new version. For cron, Slurm or Kubernetes; run it
# again after any failure.
#
#     OUT=s3://bucket/set bash weekly.sh s3://bucket/dumps/2026-11-30/*.jsonl
#
# The first run packs, with CONFIG; later ones append. KEEP versions stay (default 4). Exit codes: 0 done, 1 failure,
# 2 wrong usage or an input that needs a decision, 75 try again later.
set -euo pipefail
: "${OUT:?name the set}"
common=(--max-rejected "${MAX_REJECTED:-1%}" --keep "${KEEP:-4}" --wait "${WAIT:-30m}" --log-format json)

code=0
message=$(hbpack versions "$OUT" 2>&1 >/dev/null) || code=$?
if [ $code = 0 ]; then
    hbpack append "$OUT" "$@" --gone keep "${common[@]}"
elif [[ $message == *"holds no packed data set"* ]]; then
    hbpack pack "$@" --config "${CONFIG:?name the config of the first run}" --output "$OUT" "${common[@]}"
else
    echo "$message" >&2
    exit $code
fi
hbpack verify "$OUT" --fast
hbpack versions "$OUT"
