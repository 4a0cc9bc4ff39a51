#!/bin/sh
# Runs the five stages one after another without Switchyard. Usage: ./run_local.sh [FOLDER], default ./local-run.
set -eu
here=$(cd "$(dirname "$0")" && pwd)
folder=${1:-$here/local-run}
# The in-job module switchyard.runtime: from an installed switchyard, else from the checkout that this example is in.
PYTHONPATH=$here:${PYTHONPATH:+$PYTHONPATH:}$here/../..
YARD_INPUT_DIR=$folder/outputs
# One thread unless you say otherwise: matrices this small gain nothing from more, and lose much on a busy machine.
OMP_NUM_THREADS=${OMP_NUM_THREADS:-1}
export PYTHONPATH YARD_INPUT_DIR OMP_NUM_THREADS
for stage in preprocess pretrain train validate infer; do
    echo "== $stage"
    YARD_STAGE=$stage YARD_OUTPUT_DIR=$folder/outputs/$stage YARD_CHECKPOINT_DIR=$folder/checkpoints/$stage \
        "${PYTHON:-python3}" -m "finetune.$stage"
done
