#!/bin/bash
# One run on all hosts of a Cloud TPU slice; the same line resumes it.
#
#   TPU=my-slice ZONE=us-central2-b scripts/tpu_vm.sh --config=configs/gpt2_small.py --workdir=/mnt/runs/gpt2
#
# The checkout lies in ~/transformer_lab of each host; --workdir is a directory that all of them
# see: Filestore, or a bucket, gs://BUCKET/NAME (pip install "transformer_lab[gcs]").
set -euo pipefail
: "${TPU:?the name of the slice}" "${ZONE:?its zone}"
printf -v arguments '%q ' "$@"
gcloud compute tpus tpu-vm ssh "$TPU" --zone="$ZONE" --worker=all --command="
  cd ~/transformer_lab && pip install -q -e . 'jax[tpu]' &&
  python -m transformer_lab train --peers=auto $arguments"
