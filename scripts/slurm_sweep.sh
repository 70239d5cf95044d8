#!/bin/bash
# A sweep as an array job without submitit: element I trains run I. How many there are: --dry_run.
#
#   sbatch --array=0-11 scripts/slurm_sweep.sh --experiment=experiments/dropout.py --workdir=/shared/runs/dropout
#   python -m transformer_lab.report --workdir=/shared/runs/dropout      # when they have ended
#SBATCH --job-name=sweep
#SBATCH --gpus-per-node=1
#SBATCH --cpus-per-task=8
#SBATCH --time=04:00:00
#SBATCH --signal=TERM@120
set -euo pipefail
exec srun --ntasks=1 python -m transformer_lab.sweep --index="$SLURM_ARRAY_TASK_ID" "$@"
