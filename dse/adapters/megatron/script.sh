#!/usr/bin/env bash
@COMMENTS@
# Start it once on each node, with Slurm: srun --nodes=@NODES@ --ntasks-per-node=1 --gpus-per-node=@GPUS@ bash THIS_FILE
set -euo pipefail

# The design does not decide these values; set them in the environment. The tokenizer has at most @TABLE@ tokens.
@VALUES@
MEGATRON=${MEGATRON:-.}                # a checkout of Megatron-LM

GPUS_PER_NODE=@GPUS@
NNODES=@NODES@
# Slurm names the nodes. Elsewhere, or in a container without scontrol, set MASTER_ADDR and NODE_RANK.
NODES=${SLURM_STEP_NODELIST:-${SLURM_JOB_NODELIST:-}}
if [[ -n $NODES ]]; then
  if [[ $NNODES -gt 1 && -z ${SLURM_STEP_ID:-} ]]; then
    echo "this runs on the first node of the job alone; start it with srun, as in the comment above" >&2
    exit 1
  fi
  if [[ ${SLURM_STEP_NUM_NODES:-$NNODES} != "$NNODES" || ${SLURM_STEP_NUM_TASKS:-$NNODES} != "$NNODES" ]]; then
    echo "Slurm started $SLURM_STEP_NUM_TASKS tasks on $SLURM_STEP_NUM_NODES nodes; the design needs $NNODES on $NNODES" >&2
    exit 1
  fi
  MASTER_ADDR=${MASTER_ADDR:-$(scontrol show hostnames "$NODES" | sed -n 1p)}
  NODE_RANK=${NODE_RANK:-$SLURM_NODEID}
elif [[ $NNODES -gt 1 && -z ${NODE_RANK:-} ]]; then
  echo "NODE_RANK is not set: this node is taken as 0 of $NNODES" >&2
fi
MASTER_ADDR=${MASTER_ADDR:-localhost}
MASTER_PORT=${MASTER_PORT:-6000}
NODE_RANK=${NODE_RANK:-0}
@ENVIRONMENT@

@ARRAYS@
@OPTIONAL@
# Not part of the design. Optimizer and schedule as in Megatron-Bridge (recipes/utils/optimizer_utils.py).
OTHER_ARGS=(
  --data-path "$DATA_PATH"
  --tokenizer-type HuggingFaceTokenizer --tokenizer-model "$TOKENIZER_MODEL"
  --lr "$LEARNING_RATE" --min-lr "${MIN_LEARNING_RATE:-0}" --lr-decay-style cosine
  --lr-warmup-fraction "${WARMUP_FRACTION:-0.01}" --train-iters "$TRAIN_STEPS"
  --weight-decay 0.1 --adam-beta1 0.9 --adam-beta2 0.95 --clip-grad 1.0
  --eval-interval "${EVAL_INTERVAL:-1000}" --eval-iters "${EVAL_STEPS:-10}"
  --save "$CHECKPOINT_DIR" --save-interval "${SAVE_INTERVAL:-1000}" --load "$CHECKPOINT_DIR"
  --log-interval 1 --log-throughput  # TFLOP/s of a GPU, to compare with dse explain
  --no-create-attention-mask-in-dataloader  # kernels of attention make their own
  --manual-gc --manual-gc-interval 100  # all ranks collect garbage at the same time
  --distributed-timeout-minutes 60
)

torchrun --nproc_per_node "$GPUS_PER_NODE" --nnodes "$NNODES" --node_rank "$NODE_RANK" \
  --master_addr "$MASTER_ADDR" --master_port "$MASTER_PORT" "$MEGATRON/@PROGRAM@" \
  @GROUPS@
