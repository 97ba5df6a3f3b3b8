"""Times kernels of a machine with GPUs for `dse calibrate`: `python benchmarks/measure_gpu.py -o mine.csv`.

The kernels are matrix products of many shapes and formats, grouped products of experts, passes over memory (copies,
casts, gathers of tokens by expert, norms, the loss, the optimizer), and attention forward and backward. Where several
processes run, collectives of all sizes over groups of neighbours follow:

    torchrun --nproc-per-node 8 benchmarks/measure_gpu.py -o mine.csv

The script needs PyTorch and a GPU, and no other file of this repository; `--dry-run` prints what would be timed without
either. `--clock` shows how the clock falls while products run for seconds. `measure_steps.py` times whole steps.

Kernels run back to back in CUDA graphs, so that no time of the host counts; those that graphs do not take are launched
one by one, which the column `notes` says. Weights of products rotate through more memory than the cache holds.
"""

from __future__ import annotations

import argparse
import csv
import importlib
import os
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass, fields, replace
from functools import partial
from itertools import cycle
from pathlib import Path
from statistics import median
from typing import Any, Final

#: Widths (n, k) of products: those of layers of 1 to 405 billion parameters on one of 1 to 8 ranks.
WIDTHS: Final = (
    *((1024, 4096), (4096, 1024), (2048, 2048), (4096, 4096), (6144, 4096), (4096, 14336), (28672, 4096)),
    *((8192, 8192), (8192, 3584), (7168, 8192), (1536, 12288), (12288, 12288), (53248, 8192)),
)
#: Rows of products: tokens; one is off a whole tile.
TOKENS: Final = (128, 256, 512, 1024, 2048, 4097, 8192, 16384)
#: Formats of products: name -> that of PyTorch.
FORMATS: Final = {"bf16": "bfloat16", "fp16": "float16", "fp8": "float8_e4m3fn"}
#: Experts of one rank: (experts, n, k) of grouped products; the rows of one expert.
EXPERTS: Final = ((8, 4096, 4096), (8, 28672, 4096), (16, 4096, 7168), (32, 2816, 2048), (64, 1536, 2048))
EXPERT_ROWS: Final = (64, 256, 512, 1024, 2048)
#: Bytes that copies read and write: from those that a launch hides to those that no cache holds.
STREAMS: Final = tuple(2**power for power in range(10, 32, 3))
#: Tokens and widths of passes over activations; experts that each token goes to.
PASSES: Final = ((1024, 4096), (4096, 4096), (8192, 8192), (32768, 7168))
CHOSEN: Final = 8
#: Operators of passes over activations.
POINTWISE: Final = ("cast", "maximum", "gather", "combine", "rms_norm")
#: Parameters that the optimizer updates; tokens of the loss, over this vocabulary.
PARAMETERS: Final = (2**24, 2**27, 2**29)
LOSSES, VOCABULARY = (2048, 8192), 128256
#: Attention: tokens of a sequence, sequences, heads, groups of keys, head size, and that of values.
CORES: Final = (
    *((1024, 8, 32, 32, 64, 64), (2048, 4, 16, 16, 64, 64), (8192, 1, 32, 8, 64, 64), (2048, 4, 32, 32, 128, 128)),
    *((4096, 2, 32, 8, 128, 128), (8192, 1, 32, 8, 128, 128), (8192, 1, 16, 2, 128, 128), (16384, 1, 16, 2, 128, 128)),
    *((32768, 1, 8, 1, 128, 128), (4096, 1, 32, 32, 192, 128), (16384, 1, 8, 8, 192, 128), (8192, 1, 16, 4, 256, 256)),
)
#: Kernels of attention: their name in rows -> the backend of PyTorch.
BACKENDS: Final = {"flash_attention_2": "FLASH_ATTENTION", "cudnn": "CUDNN_ATTENTION"}
#: Bytes of messages, and collectives.
MESSAGES: Final = tuple(2**power for power in range(13, 32, 2))
COLLECTIVES: Final = ("all_gather", "reduce_scatter", "all_reduce", "all_to_all")
#: Calls before any is timed, batches of calls whose median counts, and how long one should last. Pauses between them
#: keep the power of a batch from lowering the clock of the next. [-], [-], [s], [s]
WARM_UP, BATCHES, BATCH_TIME, PAUSE = 3, 5, 0.01, 0.03
#: The most calls in a graph, and bytes that weights rotate through: more than twice what caches hold. [-], [B]
CALLS, ROTATED = 20, 2.5e8
#: Products that run for seconds: (m, n, k) and format; moments at which they are timed. [s]
LONG: Final = ((8192, 8192, 8192, "bf16"), (4096, 4096, 4096, "bf16"), (8192, 8192, 8192, "fp8"))
MOMENTS: Final = (0.002, 0.01, 0.03, 0.1, 0.3, 1.0, 3.0, 6.0)


@dataclass(frozen=True, kw_only=True, slots=True)
class Timed:
    """A row of the table: a kernel and its time."""

    row_type: str
    op: str
    dtype: str
    m: int = 0
    n: int = 0
    k: int = 0
    moe_experts: int = 0
    msg_bytes: int = 0
    n_ranks: int = 0
    mbs: int = 0
    seq: int = 0
    heads: int = 0
    kv_heads: int = 0
    hidden: int = 0
    value_size: int = 0  #: width of a head of values, where it differs from that of queries
    mask: str = ""  #: "full" for attention without a causal mask
    attn_kernel: str = ""
    latency_us: float = 0.0
    clock_mhz: float = 0.0  #: while it ran
    power_w: float = 0.0
    notes: str = ""


def plan(ranks: int) -> list[Timed]:
    """Every kernel that is timed on one GPU, and the collectives of several."""
    return [*cores(), *grouped_products(), *passes(), *products(), *collectives(ranks)]


def products() -> Iterator[Timed]:
    """Matrix products; the kernels of 8 bits take rows in multiples of 16."""
    for dtype in FORMATS:
        for n, k in WIDTHS:
            for m in TOKENS:
                if dtype == "bf16" or (dtype == "fp8" and m % 16 == 0) or (n, k) == (4096, 4096):
                    yield Timed(row_type="kernel_gemm", op="gemm", dtype=dtype, m=m, n=n, k=k)


def grouped_products() -> Iterator[Timed]:
    """Products of experts in one call, m rows of all experts together, and one call for each expert."""
    for dtype, op in (("bf16", "grouped"), ("fp8", "grouped"), ("bf16", "sequential")):
        for experts, n, k in EXPERTS:
            for rows in EXPERT_ROWS:
                yield Timed(row_type="kernel_grouped", op=op, dtype=dtype, m=experts * rows, n=n, k=k,
                            moe_experts=experts)  # fmt: skip


def passes() -> Iterator[Timed]:
    """Passes over memory, with the bytes that each must read and write."""
    stream = partial(Timed, row_type="kernel_stream", dtype="bf16")
    for size in STREAMS:
        yield stream(op="copy", msg_bytes=size)
    for op in POINTWISE:
        for m, k in PASSES:
            moved = {"cast": 3, "maximum": 2, "gather": 4 * CHOSEN, "combine": 2 * (3 * CHOSEN + 1), "rms_norm": 4}[op]
            yield stream(op=op, m=m, k=k, msg_bytes=moved * m * k)
    for count in PARAMETERS:  # reads weight, gradient and moments in fp32, writes all but the gradient
        yield stream(op="adamw", m=count, msg_bytes=28 * count)
    for m in LOSSES:  # reads logits forward; reads them and writes their gradient backward
        yield stream(op="cross_entropy", m=m, k=VOCABULARY, msg_bytes=6 * m * VOCABULARY)


def cores() -> Iterator[Timed]:
    """Passes of attention in 16 bits."""
    for kernel in BACKENDS:
        for mask in ("", "full"):
            for of_pass in ("forward", "backward"):
                for seq, mbs, heads, groups, size, value_size in CORES:
                    if mask and seq > 8192:
                        continue
                    yield Timed(
                        row_type="kernel_attention", op=of_pass, dtype="bf16", mbs=mbs, seq=seq, heads=heads,
                        kv_heads=groups, hidden=heads * size, value_size=value_size if value_size != size else 0,
                        mask=mask, attn_kernel=kernel,
                    )  # fmt: skip


def collectives(ranks: int) -> Iterator[Timed]:
    """Collectives over groups of 2, 4, ... neighbours, and over all ranks."""
    groups = sorted({2**power for power in range(1, ranks.bit_length()) if 2**power < ranks} | {ranks})
    for op in COLLECTIVES:
        for size in groups:
            for message in MESSAGES:
                if ranks > 1 and ranks % size == 0 and message % (2 * size) == 0:
                    yield Timed(row_type="kernel_coll", op=op, dtype="bf16", msg_bytes=message, n_ranks=size)


def timed(torch: Any, row: Timed, call: Callable[[], object]) -> Timed:
    """The row with the time of one call among many: median of batches."""
    for _ in range(WARM_UP):
        call()
    once, calls, alone = batch_seconds(torch, call, 2)[0], 1, row.row_type != "kernel_coll"
    captured = graph(torch, call, within(once, CALLS)) if alone else None
    if captured:
        call, calls = captured.replay, within(once, CALLS)
        once = batch_seconds(torch, call, 1)[0]
    pause = PAUSE if alone else 0.0  # ranks do not wake together
    batches = [batch_seconds(torch, call, within(once, 1000), pause) for _ in range(BATCHES)]
    return replace(
        row,
        latency_us=round(median(seconds for seconds, *_ in batches) / calls * 1e6, 3),
        clock_mhz=batches[-1][1],
        power_w=batches[-1][2],
        notes="" if captured or not alone else "launched one by one",
    )


def within(seconds: float, most: int) -> int:
    """Number of calls of so many seconds that a batch has time for, up to the most. [-]"""
    return max(1, min(most, int(BATCH_TIME / max(seconds, 1e-6))))


def graph(torch: Any, call: Callable[[], object], calls: int) -> Any:
    """A CUDA graph of several calls, or None if they cannot be captured."""
    captured = torch.cuda.CUDAGraph()
    try:
        with torch.cuda.graph(captured, stream=torch.cuda.current_stream()):
            for _ in range(calls):
                call()
    except RuntimeError:
        torch.cuda.synchronize()
        return None
    return captured


def batch_seconds(torch: Any, call: Callable[[], object], calls: int, pause: float = 0.0) -> tuple[float, float, float]:
    """Time of one of some calls after a pause, by events of the GPU [s]; clock [MHz] and power [W] while they ran."""
    start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    torch.cuda.synchronize()
    time.sleep(pause)
    start.record()
    for _ in range(calls):
        call()
    end.record()
    clock, power = state(torch)
    torch.cuda.synchronize()
    return float(start.elapsed_time(end)) * 1e-3 / calls, clock, power


def state(torch: Any) -> tuple[float, float]:
    """Clock [MHz] and power [W] of the GPU; 0 without the package nvidia-ml-py."""
    try:
        return float(torch.cuda.clock_rate()), round(torch.cuda.power_draw() / 1000)
    except (ModuleNotFoundError, RuntimeError):
        return 0.0, 0.0


def product(torch: Any, row: Timed) -> Callable[[], object]:
    """A matrix product whose result is in 16 bits; operands in 8 bits come with scales of whole tensors."""
    size = 1 if row.dtype == "fp8" else 2
    copies = max(1, min(8, int(ROTATED / (row.n * row.k * size))))
    a, *weights = (torch.randn(rows, row.k, device="cuda", dtype=torch.bfloat16) for rows in (row.m, *[row.n] * copies))
    dtype = getattr(torch, FORMATS[row.dtype])
    operands = cycle([weight.to(dtype).t() for weight in weights])
    multiply = partial(scaled_product(torch) if row.dtype == "fp8" else torch.mm, a.to(dtype))
    return lambda: multiply(next(operands))


def scaled_product(torch: Any) -> Callable[..., object]:
    """A product of operands in 8 bits with one scale for each tensor."""
    scale = torch.ones((), device="cuda")
    return partial(scaled_mm, torch, scale)


def scaled_mm(torch: Any, scale: Any, a: Any, b: Any) -> object:
    """The product of `a` and `b` in 8 bits."""
    return torch._scaled_mm(a, b, scale_a=scale, scale_b=scale, out_dtype=torch.bfloat16, use_fast_accum=True)


def grouped_product(torch: Any, row: Timed) -> Callable[[], object]:
    """Products of all experts, each of as many rows, in one call of PyTorch or in one call each."""
    experts, rows = row.moe_experts, row.m // row.moe_experts
    a = torch.randn(row.m, row.k, device="cuda", dtype=torch.bfloat16)
    b = torch.randn(experts, row.n, row.k, device="cuda", dtype=torch.bfloat16)
    if row.op == "sequential":
        parts, weights = a.split(rows), [weight.t() for weight in b]
        return lambda: [torch.mm(part, weight) for part, weight in zip(parts, weights, strict=True)]
    ends = torch.arange(rows, row.m + 1, rows, device="cuda", dtype=torch.int32)
    if row.dtype == "bf16":
        multiply = getattr(torch, "_grouped_mm", None) or torch.nn.functional.grouped_mm
        return partial(multiply, a, b.transpose(-2, -1), offs=ends)
    cast = getattr(torch, FORMATS["fp8"])
    scales = torch.ones(row.m, device="cuda"), torch.ones(experts, row.n, device="cuda")
    return partial(
        torch._scaled_grouped_mm, a.to(cast), b.to(cast).transpose(-2, -1), *scales, offs=ends,
        out_dtype=torch.bfloat16, use_fast_accum=True,
    )  # fmt: skip


def stream(torch: Any, row: Timed) -> Callable[[], object]:
    """A pass over memory; casts, maxima and the loss are compiled, as training software runs them.

    Tokens are gathered by expert, and their results gathered back and added up by weight, as in torchtitan.
    """
    tokens = partial(torch.randn, device="cuda", dtype=torch.bfloat16)
    functional, compiled = torch.nn.functional, partial(torch.compile, dynamic=False)
    if row.op == "copy":
        source = tokens(row.msg_bytes // 4)
        return partial(torch.empty_like(source).copy_, source)
    if row.op == "adamw":
        return optimizer_step(torch, row.m)
    x = tokens(row.m, row.k)
    if row.op == "cross_entropy":
        return loss_passes(torch, x)
    if row.op in ("gather", "combine"):
        order = torch.randperm(row.m * CHOSEN, device="cuda")
        gathered, weights = tokens(row.m * CHOSEN, row.k), tokens(row.m, 1, CHOSEN)
        if row.op == "gather":
            return partial(x.index_select, 0, order // CHOSEN)
        return lambda: torch.bmm(weights, gathered.index_select(0, order).view(row.m, CHOSEN, row.k))
    if row.op == "rms_norm":
        weight = torch.ones(row.k, device="cuda", dtype=torch.bfloat16)
        return partial(functional.rms_norm, x, (row.k,), weight, 1e-5)
    eight = getattr(torch, FORMATS["fp8"])
    calls = {"cast": lambda y: (y.float() * 0.5).to(eight), "maximum": lambda y: y.abs().amax().float()}
    return partial(compiled(calls[row.op]), x)


def optimizer_step(torch: Any, count: int) -> Callable[[], object]:
    """A step of AdamW, fused, of parameters in fp32."""
    weight = torch.nn.Parameter(torch.randn(count, device="cuda"))
    weight.grad = torch.randn_like(weight)
    step: Callable[[], object] = torch.optim.AdamW([weight], lr=1e-5, fused=True, capturable=True).step
    return step


def loss_passes(torch: Any, logits: Any) -> Callable[[], object]:
    """Cross entropy of logits in 16 bits, forward and backward, compiled."""
    labels = torch.randint(logits.shape[-1], logits.shape[:1], device="cuda")
    logits.requires_grad_()
    loss = torch.compile(lambda x: torch.nn.functional.cross_entropy(x.float(), labels), dynamic=False)
    return lambda: torch.autograd.grad(loss(logits), logits)


def attention(torch: Any, row: Timed) -> Callable[[], object]:
    """A pass of attention by one of PyTorch's kernels; the backward pass is that of a kept forward pass."""
    size = row.hidden // row.heads
    widths = (row.heads, size), (row.kv_heads, size), (row.kv_heads, row.value_size or size)
    tensors = [
        torch.randn(row.mbs, heads, row.seq, width, device="cuda", dtype=torch.bfloat16, requires_grad=True)
        for heads, width in widths
    ]
    grouped = {"enable_gqa": True} if row.kv_heads < row.heads else {}
    core = partial(torch.nn.functional.scaled_dot_product_attention, is_causal=row.mask != "full", **grouped)
    backend = getattr(torch.nn.attention.SDPBackend, BACKENDS[row.attn_kernel])
    with torch.nn.attention.sdpa_kernel(backend):
        out = core(*tensors)
    if row.op == "backward":
        return partial(torch.autograd.grad, out, tensors, torch.randn_like(out), retain_graph=True)

    def forward() -> object:
        with torch.no_grad(), torch.nn.attention.sdpa_kernel(backend):
            return core(*tensors)

    return forward


def collective(torch: Any, row: Timed, groups: dict[int, Any]) -> Callable[[], object]:
    """A collective of a rank's group; the message is the whole tensor, of an all-to-all the bytes of a rank."""
    distributed, elements = torch.distributed, row.msg_bytes // 2
    whole = torch.zeros(elements, device="cuda", dtype=torch.bfloat16)
    part = torch.zeros(elements // row.n_ranks, device="cuda", dtype=torch.bfloat16)
    group = {"group": groups[row.n_ranks]}
    calls: dict[str, Callable[[], object]] = {
        "all_gather": partial(distributed.all_gather_into_tensor, whole, part, **group),
        "reduce_scatter": partial(distributed.reduce_scatter_tensor, part, whole, **group),
        "all_reduce": partial(distributed.all_reduce, whole, **group),
        "all_to_all": partial(distributed.all_to_all_single, torch.empty_like(whole), whole, **group),
    }
    return calls[row.op]


def process_groups(torch: Any, rows: Sequence[Timed]) -> dict[int, Any]:
    """This rank's group of neighbours of each size, all made by all ranks in the same order."""
    groups: dict[int, Any] = {}
    ranks, rank = torch.distributed.get_world_size(), torch.distributed.get_rank()
    for size in sorted({row.n_ranks for row in rows if row.n_ranks}):
        for first in range(0, ranks, size):
            group = torch.distributed.new_group([*range(first, first + size)])
            if first <= rank < first + size:
                groups[size] = group
    return groups


def measured(torch: Any, rows: Sequence[Timed], seconds: float) -> Iterator[Timed]:
    """Rows with their times; those that this GPU cannot run are named on stderr, and left out.

    After `seconds` no further kernel of one GPU begins.
    """
    groups, began = process_groups(torch, rows) if torch.distributed.is_initialized() else {}, time.monotonic()
    make: dict[str, Callable[..., Callable[[], object]]] = {
        "kernel_gemm": product,
        "kernel_grouped": grouped_product,
        "kernel_stream": stream,
        "kernel_attention": attention,
        "kernel_coll": partial(collective, groups=groups),
    }
    for row in rows:
        if row.row_type != "kernel_coll" and time.monotonic() - began > seconds:
            print(f"left out: {described(row)}: no time left", file=sys.stderr)
            continue
        try:
            yield timed(torch, row, make[row.row_type](torch, row))
        except (RuntimeError, AttributeError) as error:  # no units for a format, no such kernel, or no memory left
            print(f"left out: {described(row)}: {str(error).splitlines()[0]}", file=sys.stderr)


def clocks(torch: Any) -> Iterator[Timed]:
    """Long runs of products after a pause: their time, clock and power some moments after they began."""
    for m, n, k, dtype in LONG:
        row = Timed(row_type="kernel_gemm", op="gemm", dtype=dtype, m=m, n=n, k=k)
        call = product(torch, row)
        batch_seconds(torch, call, 20)
        torch.cuda.synchronize()
        time.sleep(2.0)
        began = time.monotonic()
        for moment in MOMENTS:
            while time.monotonic() - began < moment:
                batch_seconds(torch, call, 4)
            once, clock, power = batch_seconds(torch, call, 8)
            passed = f"{time.monotonic() - began:.3g} s after the start"
            yield replace(row, latency_us=round(once * 1e6, 3), clock_mhz=clock, power_w=power, notes=passed)


def described(row: Timed) -> str:
    """A row in a line."""
    return " ".join(f"{name}={value}" for name, value in asdict(row).items() if value)


def write(path: Path, rows: Sequence[Timed], hardware: str, source: str) -> None:
    """The table, with empty cells for zeros."""
    with path.open("w", newline="") as file:
        table = csv.writer(file)
        names = [f.name for f in fields(Timed)]
        table.writerow(["dataset", "hw", *names, "source"])
        for row in rows:
            table.writerow(["measured", hardware, *(getattr(row, name) or "" for name in names), source])


def main(argv: Sequence[str] | None = None) -> int:
    """Time all kernels, or print which would be timed."""
    parser = argparse.ArgumentParser(description=str(__doc__).splitlines()[0])
    parser.add_argument("-o", dest="out", metavar="FILE", type=Path, default=Path("measured.csv"))
    parser.add_argument("--hardware", metavar="NAME", help="value of the column hw (default: the GPU's name)")
    parser.add_argument("--only", metavar="TYPE,...", help="types of rows: kernel_gemm, kernel_coll, ...")
    parser.add_argument("--clock", action="store_true", help="time long runs of products, not the other kernels")
    parser.add_argument("--seconds", type=float, default=3600.0, help="stop after so many (default: 3600)")
    parser.add_argument("--dry-run", action="store_true", help="print what would be timed; needs no GPU")
    args = parser.parse_args(argv)
    ranks = int(os.environ.get("WORLD_SIZE", "1"))
    rows = [row for row in plan(ranks) if not args.only or row.row_type in args.only.split(",")]
    if args.dry_run:
        print("\n".join(map(described, rows)))
        return 0
    try:
        torch = importlib.import_module("torch")
    except ModuleNotFoundError:
        return lacking("PyTorch")
    if not torch.cuda.is_available():
        return lacking("a GPU that PyTorch can use")
    torch.cuda.set_device(int(os.environ.get("LOCAL_RANK", "0")))
    torch.cuda.set_stream(torch.cuda.Stream())  # which graphs can capture
    if ranks > 1:
        torch.distributed.init_process_group("nccl")
    times = list(clocks(torch) if args.clock else measured(torch, rows, args.seconds))
    if int(os.environ.get("RANK", "0")) == 0:
        name = args.hardware or torch.cuda.get_device_name()
        write(args.out, times, name, f"benchmarks/measure_gpu.py, PyTorch {torch.__version__}")
        print(f"{args.out}: {len(times)} rows")
    if ranks > 1:
        torch.distributed.destroy_process_group()
    return 0


def lacking(need: str) -> int:
    """Exit status 1, after a line on stderr that names the need."""
    print(f"measure_gpu: needs {need}; --dry-run prints what it would time", file=sys.stderr)
    return 1


if __name__ == "__main__":
    sys.exit(main())
