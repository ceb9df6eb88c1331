#!/bin/sh
# Every benchmark once; one JSON line each. usage: bench.sh BUILD_DIR   (PYTHON=... with torch and tokenizers: ratios)
set -eu
dir=$1/bench
threads=$(nproc)
python=${PYTHON:+--python $PYTHON}
for dtype in float32 bfloat16; do
    # shellcheck disable=SC2086
    "$dir/step" --model gpt2-124m --batch 4 --seq 256 --threads "$threads" --dtype $dtype $python
done
"$dir/step" --model gpt2-124m --batch 4 --seq 1024 --threads "$threads" --dtype bfloat16 --steps 1
"$dir/step" --model llama-10m --batch 1 --seq 16384 --threads "$threads" --dtype bfloat16 --steps 1
for name in gemm attention stream tokenize moves; do
    "$dir/$name"
done
