#!/bin/bash
# A sweep as an array job without submitit: element I trains run I. How many there are: --dry_run.
#
#   sbatch --array=0-11 scripts/slurm_sweep.sh --experiment=experiments/dropout.py --workdir=/shared/runs/dropout
#   python -m transformer_lab report --workdir=/shared/runs/dropout      # when they have ended
#
# An element whose run fails is FAILED; one that is told to stop, or pre-empted, saves and goes back
# into the queue. RESTARTS=0 keeps it from starting again.
#SBATCH --job-name=sweep
#SBATCH --ntasks=1
#SBATCH --gpus-per-node=1
#SBATCH --cpus-per-task=8
#SBATCH --time=04:00:00
#SBATCH --signal=TERM@120
#SBATCH --requeue
#SBATCH --open-mode=append
set -uo pipefail
export SRUN_CPUS_PER_TASK=${SLURM_CPUS_PER_TASK:-1} # srun does not take it from sbatch
trap 'scancel --signal=TERM "$SLURM_JOB_ID" 2>/dev/null' TERM USR1 USR2 # what only this script hears
srun python -m transformer_lab sweep --index="$SLURM_ARRAY_TASK_ID" "$@" &
while wait $!; code=$?; kill -0 $! 2>/dev/null; do :; done
# 75: a process was lost; 137: it was killed; 138, 140, 143: the run was told to stop and has saved.
if [[ $code =~ ^(75|137|138|140|143)$ && ${SLURM_RESTART_COUNT:-0} -lt ${RESTARTS:-1000} ]] &&
  scontrol show job "$SLURM_JOB_ID" | grep -q JobState=RUNNING; then # not if somebody cancelled it
  scontrol requeue "$SLURM_JOB_ID"
fi
exit "$code"
