#!/bin/bash
# One run over several nodes of a SLURM cluster: a process a node, all of a node's GPUs in each.
#
#   sbatch --nodes=4 scripts/slurm_train.sh --config=configs/gpt2_small.py --workdir=/shared/runs/gpt2
#
# Two minutes before the time limit, or when the job is pre-empted, SIGTERM makes the run save, and
# the job goes back into the queue under its number; so it does after a lost process. Errors of the
# run itself end it as FAILED. RESTARTS=0 keeps it from starting again.
#SBATCH --job-name=transformer_lab
#SBATCH --ntasks-per-node=1
#SBATCH --gpus-per-node=8
#SBATCH --cpus-per-task=32
#SBATCH --time=12:00:00
#SBATCH --signal=TERM@120
#SBATCH --requeue
#SBATCH --open-mode=append
set -uo pipefail
export SRUN_CPUS_PER_TASK=${SLURM_CPUS_PER_TASK:-1} # srun does not take it from sbatch
peers=()
if ((${SLURM_NTASKS:-$SLURM_NNODES} > 1)); then peers=(--peers=auto); fi
trap 'scancel --signal=TERM "$SLURM_JOB_ID" 2>/dev/null' TERM USR1 USR2 # what only this script hears
srun --kill-on-bad-exit=0 python -m transformer_lab train "${peers[@]}" "$@" &
while wait $!; code=$?; kill -0 $! 2>/dev/null; do :; done
# 75: a process was lost; 137: it was killed; 138, 140, 143: the run was told to stop and has saved.
if [[ $code =~ ^(75|137|138|140|143)$ && ${SLURM_RESTART_COUNT:-0} -lt ${RESTARTS:-1000} ]] &&
  scontrol show job "$SLURM_JOB_ID" | grep -q JobState=RUNNING; then # not if somebody cancelled it
  scontrol requeue "$SLURM_JOB_ID"
fi
exit "$code"
