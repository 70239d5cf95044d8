#!/usr/bin/env bash
# Checks, then benchmarks, on the one accelerator (or processor) that JAX finds; under 6 minutes.
# Rows for the table of docs/benchmarks.md go to $OUT/benchmarks.md, or to ./benchmarks.md.
set -euo pipefail
cd "$(dirname "$0")/.."
python="${PYTHON:-python3}"
rows="${OUT:-.}/benchmarks.md"
kind="$("$python" -c 'import jax; print(jax.default_backend())')"

"$python" -c 'from benchmarks.common import machine; print(f"Measured on {machine()}.\n")' > "$rows"
printf '| benchmark | result | date | machine |\n| --- | --- | --- | --- |\n' >> "$rows"
"$python" -m benchmarks.device_checks
if [ "$kind" = cpu ]; then
  "$python" -m benchmarks.train_step --size=default --rounds=12 --block=10 --append="$rows"
  "$python" -m benchmarks.train_step --size=small --rounds=40 --blocks=20 --append="$rows"
  "$python" -m benchmarks.train_step --size=gpt_12m --rounds=8 --append="$rows"
else
  "$python" -m benchmarks.train_step --size=default --steps=10 --block=50 --append="$rows"
  "$python" -m benchmarks.train_step --size=base --steps=5 --rounds=10 --append="$rows"
  # Config files need ml_collections.
  "$python" -m benchmarks.train_step --config=configs/gpt2_small.py --steps=5 --rounds=6 \
    --append="$rows" || echo "train_step --config: skipped"
fi
"$python" -m benchmarks.decode --append="$rows"
"$python" -m benchmarks.decode_gpt --rounds=5 --append="$rows"
cat "$rows"
