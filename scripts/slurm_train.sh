#!/bin/bash
# One run over several nodes of a SLURM cluster: a process a node, all of a node's GPUs in each.
#
#   sbatch --nodes=4 scripts/slurm_train.sh --config=configs/gpt2_small.py --workdir=/shared/runs/gpt2
#
# The same line resumes it: SLURM's SIGTERM, two minutes before the end, makes it save first.
#SBATCH --job-name=transformer_lab
#SBATCH --ntasks-per-node=1
#SBATCH --gpus-per-node=8
#SBATCH --cpus-per-task=32
#SBATCH --time=12:00:00
#SBATCH --signal=TERM@120
#SBATCH --requeue
#SBATCH --open-mode=append
set -euo pipefail
peers=()
if ((SLURM_NNODES > 1)); then peers=(--peers=auto); fi
exec srun --kill-on-bad-exit=1 python -m transformer_lab.train "${peers[@]}" "$@"
