"""Times training steps of Llama-like models on one GPU: `python benchmarks/measure_steps.py -o steps.csv`.

Each run trains a model with random weights on random tokens in plain PyTorch: products in bf16 by autocast over weights
in fp32, FlashAttention of `scaled_dot_product_attention`, fused AdamW, gradients clipped to norm 1, and the loss of
logits in fp32. Runs differ in model, length, batch, recomputation and compilation (of each layer, as torchtitan does).
LoRA freezes weights in bf16, and trains an adapter beside each linear layer, as PEFT does.

A row states the step time, the peak of memory that the allocator reserved, and in its notes the peak that tensors took.
`dse validate --measured steps.csv` compares rows with predictions. The script needs PyTorch and a GPU, and no other
file of this repository; `--dry-run` prints the runs.
"""

from __future__ import annotations

import argparse
import csv
import gc
import importlib
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import pairwise
from pathlib import Path
from statistics import median
from typing import Any, Final

try:
    torch: Any = importlib.import_module("torch")
except ModuleNotFoundError:  # `--dry-run` needs none
    torch = None
MODULE: Any = torch.nn.Module if torch else object

#: Steps before any is timed, and those whose median counts.
WARM_UP, STEPS = 3, 8


@dataclass(frozen=True, slots=True)
class Shape:
    """Dimensions of a model."""

    name: str
    layers: int
    hidden: int
    heads: int
    kv_heads: int
    ffn: int
    vocab: int = 128256
    tied: bool = False  #: embedding and head share a weight


SHAPES: Final = {
    shape.name: shape
    for shape in (
        Shape("llama3_2_1b", 16, 2048, 32, 8, 8192, tied=True),
        Shape("llama3_2_3b", 28, 3072, 24, 8, 8192, tied=True),
        Shape("llama3_8b", 32, 4096, 32, 8, 14336),
    )
}


@dataclass(frozen=True, kw_only=True, slots=True)
class Run:
    """A training run on one GPU."""

    model: str
    seq: int
    mbs: int = 1
    ga: int = 1  #: micro-batches of a step
    compiled: bool = True
    recompute: str = "none"  #: none or full
    lora_rank: int = 0


RUNS: Final = (
    Run(model="llama3_2_1b", seq=4096, mbs=2),
    Run(model="llama3_2_1b", seq=4096, mbs=2, compiled=False),
    Run(model="llama3_8b", seq=4096, lora_rank=16),
    Run(model="llama3_8b", seq=4096, lora_rank=16, compiled=False),
    Run(model="llama3_8b", seq=4096, mbs=2, lora_rank=16, recompute="full"),
    Run(model="llama3_2_3b", seq=4096, recompute="full"),
    Run(model="llama3_2_1b", seq=8192),
    Run(model="llama3_8b", seq=8192, lora_rank=16),
    Run(model="llama3_8b", seq=8192, lora_rank=16, recompute="full", compiled=False),
    Run(model="llama3_2_3b", seq=4096),
    Run(model="llama3_2_3b", seq=8192, recompute="full"),
    Run(model="llama3_2_1b", seq=2048, mbs=4, ga=4),
    Run(model="llama3_2_1b", seq=8192, mbs=2, recompute="full"),
    Run(model="llama3_8b", seq=2048, mbs=4, lora_rank=64, recompute="full"),
    Run(model="llama3_2_1b", seq=32768, recompute="full"),
    Run(model="llama3_2_3b", seq=4096, recompute="full", compiled=False),
    Run(model="llama3_2_3b", seq=2048, mbs=4),
    Run(model="llama3_8b", seq=1024, mbs=4, lora_rank=16),
)


class Linear(MODULE):  # type: ignore[misc]
    """A linear layer; with a rank, its weight is frozen in bf16 and an adapter in fp32 trains."""

    def __init__(self, inputs: int, outputs: int, rank: int) -> None:
        super().__init__()
        weight = torch.randn(outputs, inputs, device="cuda", dtype=torch.bfloat16 if rank else torch.float32) * 0.02
        self.weight = torch.nn.Parameter(weight, requires_grad=not rank)
        self.rank = rank
        if rank:
            self.lora_a = torch.nn.Parameter(torch.randn(rank, inputs, device="cuda") * 0.02)
            self.lora_b = torch.nn.Parameter(torch.randn(outputs, rank, device="cuda") * 0.02)

    def forward(self, x: Any) -> Any:
        linear = torch.nn.functional.linear
        y = linear(x, self.weight)
        return y + 2.0 * linear(linear(x, self.lora_a), self.lora_b) if self.rank else y


class Norm(MODULE):  # type: ignore[misc]
    """RMSNorm of activations in 16 bits."""

    def __init__(self, width: int, rank: int) -> None:
        super().__init__()
        self.weight = torch.nn.Parameter(torch.ones(width, device="cuda"), requires_grad=not rank)

    def forward(self, x: Any) -> Any:
        return torch.nn.functional.rms_norm(x, x.shape[-1:], self.weight.to(x.dtype), 1e-5)


def rotated(x: Any, cosine: Any, sine: Any) -> Any:
    """Queries or keys with rotary position embedding, halves of a head rotated against each other."""
    first, second = x.float().chunk(2, dim=-1)
    return torch.cat([first * cosine - second * sine, second * cosine + first * sine], dim=-1).to(x.dtype)


class Layer(MODULE):  # type: ignore[misc]
    """A layer of Llama: attention with grouped keys, and a gated MLP."""

    def __init__(self, shape: Shape, rank: int) -> None:
        super().__init__()
        self.size = shape.hidden // shape.heads
        keys = shape.kv_heads * self.size
        self.norm_1, self.norm_2 = Norm(shape.hidden, rank), Norm(shape.hidden, rank)
        self.q, self.o = (Linear(shape.hidden, shape.hidden, rank) for _ in range(2))
        self.k, self.v = (Linear(shape.hidden, keys, rank) for _ in range(2))
        self.gate, self.up = (Linear(shape.hidden, shape.ffn, rank) for _ in range(2))
        self.down = Linear(shape.ffn, shape.hidden, rank)

    def forward(self, x: Any, cosine: Any, sine: Any) -> Any:
        y = self.norm_1(x)
        q, k, v = (part(y).unflatten(-1, (-1, self.size)).transpose(1, 2) for part in (self.q, self.k, self.v))
        q, k = rotated(q, cosine, sine), rotated(k, cosine, sine)
        core = torch.nn.functional.scaled_dot_product_attention(q, k, v, is_causal=True, enable_gqa=True)
        x = x + self.o(core.transpose(1, 2).flatten(2))
        y = self.norm_2(x)
        return x + self.down(torch.nn.functional.silu(self.gate(y)) * self.up(y))


class Model(MODULE):  # type: ignore[misc]
    """Embedding, layers and head."""

    def __init__(self, shape: Shape, run: Run) -> None:
        super().__init__()
        rank = run.lora_rank
        self.embedding = Linear(shape.hidden, shape.vocab, 0)
        self.head = self.embedding if shape.tied else Linear(shape.hidden, shape.vocab, 0)
        if rank:
            self.embedding.bfloat16().requires_grad_(False)
            self.head.bfloat16().requires_grad_(False)
        self.layers = torch.nn.ModuleList([Layer(shape, rank) for _ in range(shape.layers)])
        self.norm, self.recomputes = Norm(shape.hidden, rank), run.recompute == "full"
        half = shape.hidden // shape.heads // 2
        turns = torch.arange(run.seq, device="cuda")[:, None] / 5e5 ** (torch.arange(half, device="cuda") / half)
        self.cosine, self.sine = turns.cos(), turns.sin()

    def forward(self, tokens: Any) -> Any:
        x = torch.nn.functional.embedding(tokens, self.embedding.weight).bfloat16()
        for layer in self.layers:
            if self.recomputes:
                again = torch.utils.checkpoint.checkpoint
                x = again(layer, x, self.cosine, self.sine, use_reentrant=False)
            else:
                x = layer(x, self.cosine, self.sine)
        return self.head(self.norm(x))


def loss_of(logits: Any, labels: Any) -> Any:
    """Cross entropy of logits in fp32."""
    return torch.nn.functional.cross_entropy(logits.flatten(0, 1).float(), labels.flatten(0, 1))


def steps_of(run: Run) -> Callable[[], None]:
    """A function that trains for one step."""
    shape = SHAPES[run.model]
    torch.manual_seed(0)
    model, loss_function = Model(shape, run), loss_of
    if run.compiled:
        for layer in model.layers:
            layer.compile()
        loss_function = torch.compile(loss_of)
    trained = [weight for weight in model.parameters() if weight.requires_grad]
    optimizer = torch.optim.AdamW(trained, lr=1e-5, fused=True)
    batch = partial(torch.randint, shape.vocab, (run.mbs, run.seq), device="cuda")

    def step() -> None:
        for _ in range(run.ga):
            with torch.autocast("cuda", torch.bfloat16):
                loss = loss_function(model(batch()), batch()) / run.ga
            loss.backward()
            del loss
        torch.nn.utils.clip_grad_norm_(trained, 1.0, foreach=True)
        optimizer.step()
        optimizer.zero_grad()

    return step


def train(run: Run, profile: bool) -> tuple[float, float, float, float]:
    """Median step time [s]; peaks of memory that tensors took, that the allocator reserved, of the device. [B]"""
    step = steps_of(run)
    events = [torch.cuda.Event(enable_timing=True) for _ in range(STEPS + 1)]
    for _ in range(WARM_UP):
        step()
    events[0].record()
    for event in events[1:]:
        step()
        event.record()
    torch.cuda.synchronize()
    times = [one.elapsed_time(other) * 1e-3 for one, other in pairwise(events)]
    free, total = torch.cuda.mem_get_info()
    if profile:
        print_kernels(run, step)
    return median(times), torch.cuda.max_memory_allocated(), torch.cuda.max_memory_reserved(), float(total - free)


def print_kernels(run: Run, step: Callable[[], None]) -> None:
    """Print the time of each kernel of one step, and how often it runs."""
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CUDA]) as profiler:
        step()
        torch.cuda.synchronize()
    print(f"kernels of {run}")
    for kernel in sorted(profiler.key_averages(), key=lambda kernel: -kernel.self_device_time_total):
        if kernel.self_device_time_total:
            print(f"{kernel.self_device_time_total / 1e3:9.3f} ms {kernel.count:5} x {kernel.key[:150]}")


def row_of(run: Run) -> dict[str, object]:
    """The cells of a run's row that are known before."""
    shape = SHAPES[run.model]
    software = {"framework": "pytorch_fsdp@2024" if run.compiled else "pytorch_fsdp@2022"}
    settings = {"micro_batch_size": run.mbs, "gradient_accumulation_steps": run.ga, "recompute": run.recompute,
                "attention": "flash_attention_2", "precision": "bf16",
                "cross_entropy": "compiled" if run.compiled else "pytorch"}  # fmt: skip
    if run.lora_rank:
        settings |= {"lora_rank": run.lora_rank}
    names = "layers", "hidden", "heads", "kv_heads", "ffn", "vocab"
    return {
        "dataset": "pytorch_one_gpu", **software, "model": run.model, **{name: getattr(shape, name) for name in names},
        "gated": 1, "seq": run.seq, "gpus": 1, "given": f"tied_embeddings={str(shape.tied).lower()}",
        "design": " ".join(f"{name}={value}" for name, value in settings.items()),
    }  # fmt: skip


def rows(runs: Sequence[Run], seconds: float, profile: bool) -> Iterator[dict[str, object]]:
    """Rows with times and peaks; a run without enough memory states the memory that did not suffice."""
    began, gib = time.monotonic(), 2.0**30
    for run in runs:
        if time.monotonic() - began > seconds:
            print(f"left out: {run}: no time left", file=sys.stderr)
            continue
        torch.compiler.reset()
        gc.collect()  # models before it have cycles
        torch.cuda.empty_cache()
        torch.cuda.reset_peak_memory_stats()
        try:
            step, allocated, reserved, device = train(run, profile)
        except torch.cuda.OutOfMemoryError:
            _, total = torch.cuda.mem_get_info()
            yield {"row_type": "memory", **row_of(run), "mem_gb": f">{total / gib:.1f}", "mem_kind": "GiB reserved"}
            continue
        yield {
            "row_type": "train_step", **row_of(run), "iter_time_s": f"{step:.5g}", "mem_gb": f"{reserved / gib:.2f}",
            "mem_kind": "GiB reserved",
            "notes": f"{allocated / gib:.2f} GiB allocated; {device / gib:.2f} GiB of the device",
        }  # fmt: skip


def write(path: Path, measured: Iterator[dict[str, object]], hardware: str) -> None:
    """The table; each row is written as soon as it is measured."""
    names = [*row_of(RUNS[0]), "row_type", "hw", "iter_time_s", "mem_gb", "mem_kind", "source", "notes"]
    with path.open("w", newline="") as file:
        table = csv.DictWriter(file, names)
        table.writeheader()
        source = f"benchmarks/measure_steps.py, PyTorch {torch.__version__}"
        for row in measured:
            table.writerow({**row, "hw": hardware, "source": source})
            file.flush()
            print(*(f"{name}={row[name]}" for name in ("model", "seq", "design", "framework")), file=sys.stderr)
            print("   ", *(f"{name}={row.get(name)}" for name in ("iter_time_s", "mem_gb", "notes")), file=sys.stderr)


def main(argv: Sequence[str] | None = None) -> int:
    """Time all runs, or print them."""
    parser = argparse.ArgumentParser(description=str(__doc__).splitlines()[0])
    parser.add_argument("-o", dest="out", metavar="FILE", type=Path, default=Path("steps.csv"))
    parser.add_argument("--hardware", metavar="NAME", help="value of the column hw (default: the GPU's name)")
    parser.add_argument("--seconds", type=float, default=3600.0, help="begin no run after so many (default: 3600)")
    parser.add_argument("--profile", action="store_true", help="print the kernels of a step of each run")
    parser.add_argument("--dry-run", action="store_true", help="print the runs; needs no GPU")
    args = parser.parse_args(argv)
    if args.dry_run:
        print("\n".join(map(str, RUNS)))
        return 0
    if torch is None or not torch.cuda.is_available():
        print("measure_steps: needs PyTorch and a GPU; --dry-run prints its runs", file=sys.stderr)
        return 1
    for switch in ("enable_cudnn_sdp", "enable_mem_efficient_sdp", "enable_math_sdp"):
        getattr(torch.backends.cuda, switch)(False)
    write(args.out, rows(RUNS, args.seconds, args.profile), args.hardware or torch.cuda.get_device_name())
    return 0


if __name__ == "__main__":
    sys.exit(main())
