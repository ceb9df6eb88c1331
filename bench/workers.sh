#!/bin/sh
# bench/workers.sh PATH/TO/ductile [ROUNDS]: the same steps by 2 workers of 1 thread and by 1 worker of 2 threads, in turn:
# GPT-2 124M, 4 sequences of 256 tokens, float32 and bfloat16. One JSON line: tokens per second of each (median over steps
# after the second, best of the rounds) and the ratio for each dtype. Targets: 0.88 and 0.80 (PyTorch's DDP over gloo: about
# 1.0 and 0.73 on such a machine).
set -eu
ductile=$(cd "$(dirname "$1")" && pwd)/$(basename "$1")
rounds=${2:-2}
dir=$(mktemp -d)
trap 'rm -rf "$dir"' EXIT
mkdir "$dir/model"
echo '{"model_type":"gpt2","n_embd":768,"n_layer":12,"n_head":12,"n_positions":1024,"vocab_size":50257,"resid_pdrop":0,"embd_pdrop":0,"attn_pdrop":0}' >"$dir/model/config.json"
awk 'BEGIN { x = 12345; for (row = 0; row < 64; row++) { printf "{\"input_ids\": ["; for (i = 0; i < 257; i++) {
    x = (x * 1103515245 + 12345) % 2147483648; printf "%s%d", i ? ", " : "", int(x / 65536) % 50257 } print "]}" } }' >"$dir/rows.jsonl"
cat >"$dir/run.yaml" <<YAML
model: model
init: random
output: out
data: {train: [rows.jsonl], max_length: 257}
batch: {sequences: 4}
microbatch: {tokens: 1028}
train: {steps: 9}
checkpoint: {every: 0}
YAML
# Median tokens per second of the steps after the second.
speed() {
    rm -rf "$dir/out"
    "$ductile" train "$dir/run.yaml" --output="$dir/out" --workers="$1" --threads="$2" --train.dtype="$3" >"$dir/log" 2>&1 || { cat "$dir/log" >&2; exit 1; }
    sed -n 's/.*"step":\([0-9]*\),.*"tokens_per_second":\([0-9.]*\).*/\1 \2/p' "$dir/out/metrics.jsonl" | awk '$1 > 2 { print $2 }' | sort -n |
        awk '{ v[NR] = $1 } END { print v[int((NR + 1) / 2)] }'
}
most() { awk -v a="$1" -v b="$2" 'BEGIN { print (a > b ? a : b) }'; }
line='{"bench":"workers"'
for dtype in float32 bfloat16; do
    one=0 two=0 i=0
    while [ $i -lt "$rounds" ]; do
        one=$(most "$one" "$(speed 1 2 $dtype)")
        two=$(most "$two" "$(speed 2 1 $dtype)")
        i=$((i + 1))
    done
    line="$line,\"${dtype}_one_worker\":$one,\"${dtype}_two_workers\":$two,\"${dtype}_ratio\":$(awk -v a="$two" -v b="$one" 'BEGIN { printf "%.3f", a / b }')"
done
echo "$line}"
