"""Times kernels of a machine with GPUs for `dse calibrate`: `python benchmarks/measure_gpu.py -o mine.csv`.

Matrix products of many shapes and formats, kernels that read and write memory once (the smallest show what a
launch costs), causal attention forward and backward; and, where several processes run, collectives of all
sizes over groups of neighbours:

    torchrun --nproc-per-node 8 benchmarks/measure_gpu.py -o mine.csv

Needs PyTorch and a GPU, and nothing else of this repository; `--dry-run` prints what would be timed without
either. Rows of steps come from logs of training runs: docs/validation.md lists their columns.
"""

from __future__ import annotations

import argparse
import csv
import importlib
import os
import sys
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass, fields
from functools import partial
from pathlib import Path
from statistics import median
from typing import Any, Final

#: Widths of products: what layers of 1 to 405 billion parameters have on one of 1 to 8 ranks.
WIDTHS: Final = (
    *((1024, 4096), (4096, 1024), (2048, 2048), (4096, 4096), (6144, 4096), (4096, 14336), (28672, 4096)),
    *((8192, 8192), (8192, 3584), (7168, 8192), (1536, 12288), (12288, 12288), (53248, 8192)),
)
#: Rows of products: tokens; one is off a whole tile.
TOKENS: Final = (128, 512, 2048, 4097, 8192, 16384)
#: Formats of products: name -> of PyTorch.
FORMATS: Final = {"bf16": "bfloat16", "fp16": "float16", "fp8": "float8_e4m3fn"}
#: Bytes that streams read and write, from what a launch hides to what no cache holds.
STREAMS: Final = tuple(2**power for power in range(10, 32, 3))
#: Sequences and heads of attention: tokens of a sequence, sequences, heads, groups of keys, head size.
CORES: Final = (
    *((2048, 4, 16, 16, 64), (2048, 4, 32, 32, 128), (4096, 2, 32, 8, 128), (8192, 1, 32, 8, 128)),
    *((8192, 1, 16, 2, 128), (16384, 1, 16, 2, 128), (32768, 1, 8, 1, 128)),
)
#: Bytes of messages, and collectives.
MESSAGES: Final = tuple(2**power for power in range(13, 32, 2))
COLLECTIVES: Final = ("all_gather", "reduce_scatter", "all_reduce", "all_to_all")
#: Calls before any is timed, batches of calls whose median counts, and how long one should last. [s]
WARM_UP, BATCHES, BATCH_TIME = 5, 7, 0.05


@dataclass(frozen=True, kw_only=True, slots=True)
class Timed:
    """A row of the table: what is timed, and how long it took."""

    row_type: str
    op: str
    dtype: str
    m: int = 0
    n: int = 0
    k: int = 0
    msg_bytes: int = 0
    n_ranks: int = 0
    mbs: int = 0
    seq: int = 0
    heads: int = 0
    kv_heads: int = 0
    hidden: int = 0
    attn_kernel: str = ""
    latency_us: float = 0.0


def plan(ranks: int) -> list[Timed]:
    """Everything that is timed on one GPU, and on some ranks beside each other."""
    products = [
        Timed(row_type="kernel_gemm", op="gemm", dtype=dtype, m=m, n=n, k=k)
        for dtype in FORMATS
        for n, k in WIDTHS
        for m in TOKENS
        if dtype != "fp8" or m % 16 == 0  # which its kernels want
    ]
    streams = [Timed(row_type="kernel_stream", op="copy", dtype="bf16", msg_bytes=size) for size in STREAMS]
    cores = [
        Timed(
            row_type="kernel_attention",
            op=of_pass,
            dtype="bf16",
            mbs=mbs,
            seq=seq,
            heads=heads,
            kv_heads=groups,
            hidden=heads * size,
            attn_kernel="flash_attention_2",
        )
        for of_pass in ("forward", "backward")
        for seq, mbs, heads, groups, size in CORES
    ]
    return [*products, *streams, *cores, *collectives(ranks)]


def collectives(ranks: int) -> Iterator[Timed]:
    """Collectives over groups of 2, 4, ... neighbours, and over all ranks."""
    groups = sorted({2**power for power in range(1, ranks.bit_length()) if 2**power < ranks} | {ranks})
    for op in COLLECTIVES:
        for size in groups:
            for message in MESSAGES:
                if ranks > 1 and ranks % size == 0 and message % (2 * size) == 0:
                    yield Timed(row_type="kernel_coll", op=op, dtype="bf16", msg_bytes=message, n_ranks=size)


def seconds(torch: Any, call: Callable[[], object]) -> float:
    """Time of one call among many that are launched one after the other: median of batches. [s]"""
    for _ in range(WARM_UP):
        call()
    once = batch_seconds(torch, call, 3)
    calls = max(3, min(1000, int(BATCH_TIME / max(once, 1e-6))))
    return median(batch_seconds(torch, call, calls) for _ in range(BATCHES))


def batch_seconds(torch: Any, call: Callable[[], object], calls: int) -> float:
    """Time of one of some calls, by events of the GPU. [s]"""
    start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    torch.cuda.synchronize()
    start.record()
    for _ in range(calls):
        call()
    end.record()
    torch.cuda.synchronize()
    return float(start.elapsed_time(end)) * 1e-3 / calls


def product(torch: Any, row: Timed) -> Callable[[], object]:
    """A matrix product whose result is in 16 bits; operands in 8 bits come with scales of whole tensors."""
    a, b = (torch.randn(size, device="cuda", dtype=torch.bfloat16) for size in ((row.m, row.k), (row.n, row.k)))
    if row.dtype == "fp8":
        scale = torch.ones((), device="cuda")
        cast = getattr(torch, FORMATS["fp8"])
        multiply = partial(
            torch._scaled_mm, scale_a=scale, scale_b=scale, out_dtype=torch.bfloat16, use_fast_accum=True
        )
        return partial(multiply, a.to(cast), b.to(cast).t())
    dtype = getattr(torch, FORMATS[row.dtype])
    return partial(torch.mm, a.to(dtype), b.to(dtype).t())


def stream(torch: Any, row: Timed) -> Callable[[], object]:
    """A copy within memory: half of the bytes are read, half are written."""
    source = torch.zeros(row.msg_bytes // 4, device="cuda", dtype=torch.bfloat16)
    return partial(torch.empty_like(source).copy_, source)


def attention(torch: Any, row: Timed) -> Callable[[], object]:
    """A pass of causal attention of FlashAttention-2."""
    size = row.hidden // row.heads
    shapes = [(row.mbs, heads, row.seq, size) for heads in (row.heads, row.kv_heads, row.kv_heads)]
    tensors = [torch.randn(shape, device="cuda", dtype=torch.bfloat16, requires_grad=True) for shape in shapes]
    grouped = {"enable_gqa": True} if row.kv_heads < row.heads else {}
    core = partial(torch.nn.functional.scaled_dot_product_attention, *tensors, is_causal=True, **grouped)
    with torch.nn.attention.sdpa_kernel(torch.nn.attention.SDPBackend.FLASH_ATTENTION):
        out = core()
    if row.op == "forward":

        def forward() -> object:
            with torch.no_grad(), torch.nn.attention.sdpa_kernel(torch.nn.attention.SDPBackend.FLASH_ATTENTION):
                return core()

        return forward
    return partial(torch.autograd.grad, out, tensors, torch.ones_like(out), retain_graph=True)


def collective(torch: Any, row: Timed, groups: dict[int, Any]) -> Callable[[], object]:
    """A collective of a rank's group; the message is the whole tensor, of an all-to-all what a rank holds."""
    own, elements = torch.distributed, row.msg_bytes // 2
    whole = torch.zeros(elements, device="cuda", dtype=torch.bfloat16)
    part = torch.zeros(elements // row.n_ranks, device="cuda", dtype=torch.bfloat16)
    group = {"group": groups[row.n_ranks]}
    calls: dict[str, Callable[[], object]] = {
        "all_gather": partial(own.all_gather_into_tensor, whole, part, **group),
        "reduce_scatter": partial(own.reduce_scatter_tensor, part, whole, **group),
        "all_reduce": partial(own.all_reduce, whole, **group),
        "all_to_all": partial(own.all_to_all_single, torch.empty_like(whole), whole, **group),
    }
    return calls[row.op]


def process_groups(torch: Any, rows: Sequence[Timed]) -> dict[int, Any]:
    """This rank's group of neighbours of each size, all made by all ranks in the same order."""
    found: dict[int, Any] = {}
    ranks, own = torch.distributed.get_world_size(), torch.distributed.get_rank()
    for size in sorted({row.n_ranks for row in rows if row.n_ranks}):
        for first in range(0, ranks, size):
            group = torch.distributed.new_group([*range(first, first + size)])
            if first <= own < first + size:
                found[size] = group
    return found


def measured(torch: Any, rows: Sequence[Timed]) -> Iterator[Timed]:
    """Rows with their times; those that this GPU cannot run are said on stderr, and left out."""
    groups = process_groups(torch, rows) if torch.distributed.is_initialized() else {}
    make: dict[str, Callable[..., Callable[[], object]]] = {
        "kernel_gemm": product,
        "kernel_stream": stream,
        "kernel_attention": attention,
        "kernel_coll": partial(collective, groups=groups),
    }
    for row in rows:
        try:
            time = seconds(torch, make[row.row_type](torch, row))
        except RuntimeError as error:  # no units for a format, or no memory left: on all ranks alike
            print(f"left out: {described(row)}: {str(error).splitlines()[0]}", file=sys.stderr)
            continue
        values = {**{f.name: getattr(row, f.name) for f in fields(row)}, "latency_us": round(time * 1e6, 3)}
        yield Timed(**values)


def described(row: Timed) -> str:
    """A row in a line."""
    return " ".join(f"{name}={value}" for name, value in asdict(row).items() if value)


def write(path: Path, rows: Sequence[Timed], hardware: str) -> None:
    """The table, an empty cell where there is nothing to say."""
    with path.open("w", newline="") as file:
        table = csv.writer(file)
        names = [f.name for f in fields(Timed)]
        table.writerow(["dataset", "hw", *names])
        for row in rows:
            table.writerow(["measured", hardware, *(getattr(row, name) or "" for name in names)])


def main(argv: Sequence[str] | None = None) -> int:
    """Time everything, or print what would be timed."""
    parser = argparse.ArgumentParser(description=str(__doc__).splitlines()[0])
    parser.add_argument("-o", dest="out", metavar="FILE", type=Path, default=Path("measured.csv"))
    parser.add_argument("--hardware", metavar="NAME", help="as the column hw says it (default: the GPU's name)")
    parser.add_argument("--only", metavar="TYPE", help="one type of row: kernel_gemm, kernel_coll, ...")
    parser.add_argument("--dry-run", action="store_true", help="print what would be timed; needs no GPU")
    args = parser.parse_args(argv)
    ranks = int(os.environ.get("WORLD_SIZE", "1"))
    rows = [row for row in plan(ranks) if args.only in (None, row.row_type)]
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
    if ranks > 1:
        torch.distributed.init_process_group("nccl")
    timed = list(measured(torch, rows))
    if int(os.environ.get("RANK", "0")) == 0:
        write(args.out, timed, args.hardware or torch.cuda.get_device_name())
        print(f"{args.out}: {len(timed)} rows")
    if ranks > 1:
        torch.distributed.destroy_process_group()
    return 0


def lacking(what: str) -> int:
    """Say what the machine has not."""
    print(f"measure_gpu: needs {what}; --dry-run prints what it would time", file=sys.stderr)
    return 1


if __name__ == "__main__":
    sys.exit(main())
