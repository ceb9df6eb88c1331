#!/bin/sh
# From two Debian packages to a small Llama that writes. usage: run.sh PATH/TO/ductile [DIR [--section.key=value ...]]
set -eu
here=$(cd "$(dirname "$0")" && pwd)
ductile=$(cd "$(dirname "$1")" && pwd)/$(basename "$1")
dir=${2:-runs/bible}
shift $(($# < 2 ? $# : 2))
mkdir -p "$dir/model"
dir=$(cd "$dir" && pwd)
say() { printf '\n== %s\n' "$*" >&2; }

say "corpus: chapters of the King James Bible, entries of the Jargon File -> $dir/corpus"
"$here/prepare.sh" "$dir/corpus"
cp "$here/config.json" "$dir/model/config.json"
cp "$here/run.yaml" "$dir/run.yaml"
if [ ! -s "$dir/model/tokenizer.json" ]; then
    say "tokenizer: 4096 tokens learned from the training texts -> $dir/model"
    "$ductile" tokenize --train --vocab-size 4096 -o "$dir/model" "$dir/corpus/train.txt"
fi
say "training -> $dir/run"
"$ductile" train "$dir/run.yaml" "$@"
say "held-out chapters of the Bible (xz -9e: 1.92 bits per byte for the last 200 KB after the rest, 2.28 alone)"
"$ductile" eval "$dir/run" --data "$dir/corpus/eval.jsonl" --max-length 512
say "a sample"
"$ductile" generate "$dir/run" --prompt "Ge1:1 In the beginning" --max-new-tokens 120 --temperature 0.8 --top-p 0.95
"$ductile" inspect "$dir/run" --plot >/dev/null
say "the model:       $(ls -d "$dir"/run/checkpoints/step-* | tail -n 1)   (a Hugging Face directory)"
printf '== metrics:         %s\n== loss curve:      %s\n== go on or change: %s\n' "$dir/run/metrics.jsonl" "$dir/run/loss.svg" "$dir/run.yaml" >&2
