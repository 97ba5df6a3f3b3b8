"""Memory of compiled programs: by hand, rule by rule, and in reports."""

from string import Template

import pytest

from dse.adapters.xla import hlo
from dse.adapters.xla.buffers.liveness import liveness, memory_bytes
from dse.adapters.xla.buffers.reserved_memory import CODE_BYTES, Reserved, reserved
from dse.adapters.xla.text.module import Shape
from tests.support.cases import cases
from tests.support.commands import json_of, stdout_of
from tests.support.hlo_texts import program
from tests.support.paths import TEST_DATA

KIB = 1024
DATA = TEST_DATA / "hlo"
ROW, TABLE = "f32[256]", "f32[8,256]"  # 1 KiB, 8 KiB


def scheduled(body: str, *, before: str = "", alias: str = "") -> Reserved:
    """Memory of a program that runs in the order of its text."""
    header = ", is_scheduled=true" + (f", input_output_alias={{ {alias} }}" if alias else "")
    module = hlo.parse(program(body, before=before, header=header), "text")
    return reserved(liveness(module, lambda computation: computation.instructions))


def test_kernels_for_tpus_have_their_code_beside_arrays():
    body = f"  x = {ROW} parameter(0)\n  h = {ROW} sine(x)\n  ROOT z = {ROW} reverse(h), dimensions={{0}}"
    module = hlo.parse(program(body, header=", is_scheduled=true"), "text")
    actual = liveness(module, lambda computation: computation.instructions)
    on_tpu = reserved(actual, tpu_kernels=2)
    assert on_tpu.temporaries == reserved(actual).temporaries + 2 * CODE_BYTES
    assert 0.8 * reserved(actual).temporaries < on_tpu.least < on_tpu.temporaries < on_tpu.most
    assert (reserved(actual).least, reserved(actual).most) == (0, 0)


#: Programs that libtpu 0.0.52 compiled for v5e -> bytes of its `memory_analysis` (argument + output - alias +
#: temp), and how far off the estimate may be.
TPU_PROGRAMS = {
    "tpu_pipeline": (3_407_872 + 3_146_240 - 3_145_728 + 409_600, 0.10),
    "tpu_ring": (4_784_128 + 4_719_104 - 4_718_592 + 0, 0.001),
    "tpu_ragged_experts": (26_263_552 + 25_215_488 - 25_214_976 + 638_976, 0.015),
}


@pytest.mark.parametrize("name", TPU_PROGRAMS)
def test_memory_on_tpus_lies_in_the_interval_that_is_printed(name):
    """Numbers lie in memory of their own; what is beside arrays is not in the text."""
    reserved_by_xla, error = TPU_PROGRAMS[name]
    path = str(DATA / f"{name}.hlo.gz")
    memory = json_of("cost", path, "--system", "tpu_v5e_pod")["memory"]
    assert memory["program_bytes"] == pytest.approx(reserved_by_xla, rel=error)
    assert memory["program_bytes_low"] <= reserved_by_xla <= memory["program_bytes_high"]
    printed = " ".join(stdout_of("cost", path, "--system", "tpu_v5e_pod").split())
    assert "since texts for TPUs do not show all of it" in printed


#: A loop over a counter, a row that each turn replaces, one that it only reads, and a table that keeps all.
LOOP = Template(cases(__file__, "LOOP")).substitute(row=ROW, table=TABLE)
BELOW = cases(__file__, "BELOW")
RUN_LOOP = Template(cases(__file__, "RUN_LOOP")).substitute(row=ROW, table=TABLE)


def test_a_loop_carries_in_place_and_holds_what_it_reads():
    """Beside the table, once: the counter, the row, the one that is only read, and a turn's reshape."""
    held = scheduled(RUN_LOOP, before=BELOW + LOOP)
    assert held.arguments == KIB
    assert held.results == 8 * KIB  # in which the table lies before
    assert held.temporaries == 3 * KIB + 4


def test_what_an_asynchronous_pair_reads_lives_to_its_end():
    body = f"""  x = {ROW} parameter(0)
  a = {ROW} sine(x)
  s = ({ROW}, {TABLE}) all-gather-start(a), replica_groups={{{{0,1,2,3,4,5,6,7}}}}, dimensions={{0}}
  b = {ROW} cosine(x)
  c = {ROW} reverse(b), dimensions={{0}}
  d = {TABLE} all-gather-done(s)
  ROOT y = ({ROW}, {TABLE}) tuple(c, d)"""
    held = scheduled(body)
    assert (held.results, held.temporaries) == (9 * KIB, 2 * KIB)


@pytest.mark.parametrize(
    ("layout", "size"),
    [("{1,0}", 2000), ("{1,0:T(8,128)}", 4096), ("{0,1:T(8,128)}", 53248), ("{1,0:T(8,128)S(1)}", 0),
     ("{1,0:T(0,128)}", 2560), ("{7:T(8)}", 2000)],
)  # fmt: skip
def test_tiles_are_filled_up_and_other_memories_left_out(layout, size):
    """5 rows of 100 in tiles of 8 x 128; or laid out by columns, 100 rows of 5 in 13 tiles."""
    assert memory_bytes(Shape("f32", (5, 100), layout=layout)) == size
