"""Small HLO modules and ways to print them, shared by the tests of their reader."""

# ruff: noqa: E501  # lines as XLA prints them

from __future__ import annotations

import re
from functools import cache
from pathlib import Path

import pytest

from dse.adapters.xla import hlo
from tests.support.paths import TEST_DATA

DATA = TEST_DATA / "hlo"
TRANSFORMER = (DATA / "transformer.hlo").read_text()
LOOP = (DATA / "loop.hlo").read_text()
GPT = (DATA / "gpt.hlo").read_text()

#: The same loop until its counter is something that the program is given: nobody can tell how often it runs.
UNCOUNTED = LOOP.replace('"known_trip_count"', '"unknown"').replace(
    "constant.5 = s32[] constant(0)", "constant.5 = s32[] parameter(2)"
)

#: The reference module, a training step of a GPT on 16 devices, and its figures, where they are there: it is
#: another's, and too large to keep.
REFERENCE = next((up / "shared" for up in Path(__file__).parents if (up / "shared" / "specs").is_dir()), DATA)
SEED = REFERENCE / "seeds" / "004_f260b7b1b8c886c1.txt"
GOLDEN = REFERENCE / "specs" / "hlo_golden.csv"


def needs_reference(instead: str) -> pytest.MarkDecorator:
    """Skips a test where the reference module is not there, and says which tests ask the same of our own."""
    reason = f"the reference module is not in this checkout; of our own modules: {instead}"
    return pytest.mark.skipif(not (SEED.exists() and GOLDEN.exists()), reason=reason)


#: Everything that a printer may or may not do, on one page: shapes of operands, %, comments, escapes.
OLD_PRINTER = r"""
HloModule step, input_output_alias={ {0}: (0, {}, may-alias) }

%sum (a.1: f32[], b.1: f32[]) -> f32[] {
  %a.1 = f32[] parameter(0)
  %b.1 = f32[] parameter(1)
  ROOT %plus = f32[] add(f32[] %a.1, f32[] %b.1)
}

%largest (a.2: f32[], b.2: f32[]) -> f32[] {
  %a.2 = f32[] parameter(0)
  %b.2 = f32[] parameter(1)
  ROOT %most = f32[] maximum(f32[] %a.2, f32[] %b.2)
}

%fused (p.0: f32[6,10], p.1: f32[]) -> (f32[6,10], f32[6]) {
  %p.0 = f32[6,10]{1,0} parameter(0)
  %p.1 = f32[] parameter(1)
  %wide = f32[6,10]{1,0} broadcast(f32[] %p.1), dimensions={}
  %scaled = f32[6,10]{1,0} multiply(f32[6,10]{1,0} %p.0, f32[6,10]{1,0} %wide), metadata={op_name="a, (b) = {c} \"d\" /*index=5*/"}
  %zero = f32[] constant(0)
  %rows = f32[6]{0} reduce(f32[6,10]{1,0} %scaled, f32[] %zero), dimensions={1}, to_apply=%sum
  ROOT %both = (f32[6,10]{1,0}, /*index=1*/f32[6]{0}) tuple(f32[6,10]{1,0} %scaled, f32[6]{0} %rows)
}

ENTRY %main (w: f32[7,10], x: f32[6,7], s: f32[]) -> (f32[7,10], f32[6], f32[6,10]) {
  %w = f32[7,10]{1,0} parameter(0), sharding={devices=[1,2,2]0,1,2,3 last_tile_dim_replicate}
  %x = f32[6,7]{1,0} parameter(1)
  %s = f32[] parameter(2)
  %mask = f32[16]{0} constant({...})
  %bias = f32[6,10]{1,0} broadcast(f32[] %s), dimensions={}
  %gemm = f32[6,10]{1,0} custom-call(f32[6,7]{1,0} %x, f32[7,10]{1,0} %w, f32[6,10]{1,0} %bias), custom_call_target="__cublas$gemm", output_to_operand_aliasing={{}: (2, {})}, metadata={op_name="jit(f)/jvp(net)/layer/0/dot"}, backend_config="{\"alpha_real\":1,\"beta\":1,\"dot_dimension_numbers\":{\"lhs_contracting_dimensions\":[\"1\"],\"rhs_contracting_dimensions\":[\"0\"],\"lhs_batch_dimensions\":[],\"rhs_batch_dimensions\":[]}}"
  %reduced = f32[6,10]{1,0} all-reduce(f32[6,10]{1,0} %gemm), channel_id=1, replica_groups={{0,1},{2,3}}, use_global_device_ids=true, to_apply=%sum
  %fusion = (f32[6,10]{1,0}, f32[6]{0}) fusion(f32[6,10]{1,0} %reduced, f32[] %s), kind=kInput, calls=%fused
  %scaled.1 = f32[6,10]{1,0} get-tuple-element((f32[6,10]{1,0}, f32[6]{0}) %fusion), index=0
  %rows.1 = f32[6]{0} get-tuple-element((f32[6,10]{1,0}, f32[6]{0}) %fusion), index=1
  %highest = f32[6]{0} all-reduce(f32[6]{0} %rows.1), channel_id=2, replica_groups={{0,2},{1,3}}, use_global_device_ids=true, to_apply=%largest, control-predecessors={%reduced}
  %grown = f32[7,10]{1,0} add(f32[7,10]{1,0} %w, f32[7,10]{1,0} %w)
  ROOT %result = (f32[7,10]{1,0}, f32[6]{0}, /*index=2*/f32[6,10]{1,0}) tuple(f32[7,10]{1,0} %grown, f32[6]{0} %highest, f32[6,10]{1,0} %scaled.1)
}
"""


def analysed(text: str) -> hlo.Analysis:
    """A text, read."""
    return hlo.Analysis(hlo.parse(text, "text"))


@cache
def figures(text: str) -> dict[str, int | float | str]:
    """Figures of a text."""
    return hlo.figures(analysed(text))


def program(body: str, *, result: str = "", before: str = "", header: str = "") -> str:
    """A module whose entry holds some instructions."""
    arrow = f" () -> {result}" if result else ""
    return f"HloModule m{header}\n{before}\nENTRY main{arrow} {{\n{body}\n}}\n"


def without_percent(text: str) -> str:
    """Names without %."""
    return text.replace("%", "")


def without_operand_shapes(text: str) -> str:
    """Operands by their names alone, as new printers have them."""
    shape = r"(?:\((?:[^()]|\([^()]*\))*\)|[a-z]\w*\[[^\]]*\](?:\{[^}]*\})?)"
    return re.sub(rf"(?<=[(,\s]){shape} (?=%)", "", text)


def without_metadata(text: str) -> str:
    """Nothing about the program's own names."""
    return re.sub(r', metadata=\{(?:[^{}"]|"(?:[^"\\]|\\.)*")*\}', "", text)


def with_bare_json(text: str) -> str:
    """backend_config as JSON, not as a string that holds it."""
    return re.sub(
        r'backend_config="((?:[^"\\]|\\.)*)"', lambda found: "backend_config=" + found[1].replace('\\"', '"'), text
    )


#: Printings that say the same.
PRINTERS = {
    "no %": without_percent,
    "no shapes of operands": without_operand_shapes,
    "bare JSON": with_bare_json,
    "all of it": lambda text: without_percent(without_operand_shapes(with_bare_json(text))),
}
