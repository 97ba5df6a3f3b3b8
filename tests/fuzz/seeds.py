"""Files that readers read, of which hostile ones are made: what ships, what tests hold, what dse writes."""

import json
import re
from collections import Counter
from collections.abc import Iterable, Iterator
from functools import cache
from io import BytesIO
from pathlib import Path
from typing import Any, Final

import pandas as pd

import search_spaces
from costmodel.formats import shipped as shipped_files
from costmodel.formats.input_files import data_beside, dump
from dse.api.exports import artefacts
from dse.spaces.space import Space
from tests.support.aicb_files import SMALL
from tests.support.cases import cases
from tests.support.hlo_texts import DATA, OLD_PRINTER, program
from tests.support.hugging_face_configs import PUBLISHED

#: Files of this form that once made trouble, by the name of their target.
CORPUS: Final = Path(__file__).parents[1] / "data" / "corpus"

#: A space of every kind of line, as a file holds it.
SPACE: Final = cases(__file__, "SPACE")

#: Formulas of spaces, quantities, and files of bandwidths.
FORMULAS, QUANTITIES, BUSBW = cases(__file__, "FORMULAS"), cases(__file__, "QUANTITIES"), cases(__file__, "BUSBW")

#: What every kind of text is spoilt with, beside its own words.
HOSTILE: Final = (
    *"{}[]():,=#\\\"'\n\t\0\x1b*&!|%<>?\u00e9\u00b2\u0663\u202e",
    *("0", "-1", "0.5", "1e308", "1e-308", "1e999", "nan", "inf", "true", "null", "9" * 30, "9" * 60, "2 GB"),
    *("$", "!!python/object:", "<<: ", "- ", "${", "$((", "[["),
)


def words(files: Iterable[bytes], most: int = 1500) -> list[str]:
    """Names, numbers and signs of files, the most frequent first, after words that spoil files."""
    texts = (file.decode(errors="replace") for file in files)
    actual = Counter(word for text in texts for word in re.findall(r"[\w.-]{2,40}|[^\w\s]{1,3}", text))
    return [*HOSTILE, *(word for word, _ in actual.most_common(most))]


@cache
def space(model: str = "gpt_22b") -> Space:
    """The small space, of a model."""
    return Space.from_text(SPACE.replace("gpt_22b", model))


def shipped(kind: str) -> Iterator[bytes]:
    """Files of a kind that ship."""
    for name in shipped_files.names(kind):
        yield (Path(search_spaces.__file__).parent / kind / f"{name}.yaml").read_bytes()


def spaces() -> Iterator[bytes]:
    """Search spaces."""
    yield SPACE.encode()
    yield from shipped("spaces")


def encoded(texts: Iterable[str]) -> list[bytes]:
    """Texts as files hold them."""
    return [text.encode() for text in texts]


def hugging_face() -> Iterator[bytes]:
    """Configurations of models."""
    for config, _, _ in PUBLISHED.values():
        yield json.dumps(config).encode()


def hlo_modules() -> Iterator[bytes]:
    """Compiled programs, small ones."""
    yield OLD_PRINTER.encode()
    yield (DATA / "loop.hlo").read_bytes()
    yield program("  ROOT a = f32[8] parameter(0)").encode()
    yield program(
        "  p = f32[1,9,9,4] parameter(0)\n  k = f32[3,3,4,8] parameter(1)\n"
        "  c = f32[1,7,7,8] convolution(p, k), window={size=3x3}, dim_labels=b01f_01io->b01f\n"
        "  ROOT s = f32[1,7,7,8] all-reduce(c), replica_groups=[2,2]<=[4], to_apply=sum",
        before="sum { a = f32[] parameter(0)\n b = f32[] parameter(1)\n ROOT c = f32[] add(a, b) }",
    ).encode()


def written(form: str, model: str = "gpt_22b") -> bytes:
    """A design of the small space as dse writes it."""
    [file] = artefacts(space(model), [space(model).completed({})], form)
    assert isinstance(file.content, bytes), file.notes
    return file.content


def aicb() -> Iterator[bytes]:
    """Workloads."""
    yield SMALL.encode()
    yield b"\n".join(written("aicb").splitlines()[:2])


def dfmodel() -> Iterator[bytes]:
    """Set-ups, text and binary."""
    yield written("dfmodel")
    yield written("dfmodel-binary")
    yield b'dataflow_graph { kernels { name: "a" id: 1 } }\nsystem { num_chip: 4 }\n'


def deepflow() -> Iterator[bytes]:
    """Configurations."""
    yield (DATA.parent / "lstm_power_probe.yaml").read_bytes()


def deepflow_setups() -> Iterator[bytes]:
    """A hardware file of the second generation, which holds its model."""
    tree: dict[str, Any] = {}
    for path, value in data_beside(str(DATA.parent / "deepflow_setups.yaml"))["second"]["base"].items():
        *blocks, key = path.split(".")
        inner = tree
        for block in blocks:
            inner = inner.setdefault(block, {})
        inner[key] = value
    yield dump(tree).encode()


def megatron() -> Iterator[bytes]:
    """Scripts of Megatron-LM."""
    yield written("megatron")
    yield cases(__file__, "MEGATRON").encode()


def settings(form: str, model: str) -> Iterator[bytes]:
    """A launch file of a framework."""
    yield written(form, model)


def measurements() -> Iterator[bytes]:
    """Tables of measurements: a few rows of each kind."""
    folder = Path(__file__).parents[2] / "dse" / "validation" / "data"
    for name in ("steps.csv", "runs.csv", "memory.csv"):
        lines = (folder / name).read_bytes().splitlines(keepends=True)
        yield b"".join(lines[:3])
        yield b"".join([lines[0], *lines[-2:]])
    yield (
        b"row_type,dataset,hw,op,m,n,k,dtype,latency_us\nkernel_gemm,mine,a100_80g_dgx,gemm,4096,4096,1024,bf16,80\n"
    )


def design_tables() -> Iterator[bytes]:
    """Designs as text."""
    yield b"tp,pp,micro_batch_size,recompute,step_time_s\n1,2,1,none,3.5\n8,,2,full,\n"


def parquet_tables() -> Iterator[bytes]:
    """Designs as Parquet."""
    buffer = BytesIO()
    pd.DataFrame({"tp": [1, 2], "recompute": ["none", None]}).to_parquet(buffer, compression=None)
    yield buffer.getvalue()
