#!/usr/bin/env bash
# GPT-3 175B on 1,024 chips, for Megatron-LM 0.20, arguments as of 2026-08-22.
set -euo pipefail

# What the design does not decide.
: ${DATA_PATH:?prefix of the tokenized data}
: ${TOKENIZER_MODEL:?tokenizer: a file or a Hugging Face name}
: ${CHECKPOINT_DIR:?where checkpoints go}
: ${LEARNING_RATE:?peak learning rate, such as 1.5e-4}
: ${TRAIN_STEPS:?optimizer steps of the run}
MEGATRON=${MEGATRON:-.}                # a checkout of Megatron-LM
MASTER_ADDR=${MASTER_ADDR:-localhost} MASTER_PORT=${MASTER_PORT:-6000} NODE_RANK=${NODE_RANK:-0}

NNODES=128
GPUS_PER_NODE=8
export CUDA_DEVICE_MAX_CONNECTIONS=1

MODEL_ARGS=(
  --num-layers 96
  --hidden-size 12288
  --num-attention-heads 96
  --ffn-hidden-size 49152
  --kv-channels 128
  --seq-length 2048
  --vocab-size 51200
  --max-position-embeddings 2048
  --make-vocab-size-divisible-by 1
  --position-embedding-type learned_absolute
  --normalization LayerNorm
)
PARALLEL_ARGS=(
  --tensor-model-parallel-size 8
  --pipeline-model-parallel-size 8
  --context-parallel-size 1
  --expert-model-parallel-size 1
  --num-virtual-stages-per-pipeline-rank 12
  --sequence-parallel
  --no-overlap-p2p-communication
)
TRAINING_ARGS=(
  --micro-batch-size 4
  --global-batch-size 1536
  --use-distributed-optimizer
  --bf16
)
OTHER_ARGS=(
  --data-path "$DATA_PATH"
  --tokenizer-type HuggingFaceTokenizer --tokenizer-model "$TOKENIZER_MODEL"
  --lr "$LEARNING_RATE" --train-iters "$TRAIN_STEPS"
  --save "$CHECKPOINT_DIR" --load "$CHECKPOINT_DIR"
)

torchrun --nproc_per_node "$GPUS_PER_NODE" --nnodes "$NNODES" --node_rank "$NODE_RANK" \
  --master_addr "$MASTER_ADDR" --master_port "$MASTER_PORT" "$MEGATRON/pretrain_gpt.py" \
  "${MODEL_ARGS[@]}" "${PARALLEL_ARGS[@]}" "${TRAINING_ARGS[@]}" "${OTHER_ARGS[@]}"
