"""HLO text of old and new printers is read alike, and what XLA refuses is refused, with line and token."""

import gzip
from contextlib import suppress

import pytest
from hypothesis import given
from hypothesis import strategies as st

from costmodel import DseError
from dse.adapters.xla import hlo
from dse.adapters.xla.text.module import normalised, placement
from tests.support.cases import cases
from tests.support.hlo_texts import GPT, LOOP, OLD_PRINTER, PRINTERS, TRANSFORMER, figures, program


@pytest.mark.parametrize("printer", PRINTERS)
@pytest.mark.parametrize("text", [OLD_PRINTER, TRANSFORMER, GPT], ids=["old", "new", "gpt"])
def test_figures_do_not_depend_on_the_printer(text, printer):
    told, changed = figures(text), figures(PRINTERS[printer](text))
    differing = {name for name in told.keys() | changed.keys() if told.get(name) != changed.get(name)}
    assert differing <= {"file.sha256", "file.bytes"}


def test_strings_may_hold_anything():
    op_name = r"a, (b) = {c] \"d\" \\ /*e*/ %f\'"
    attributes = f'metadata={{op_name="{op_name}" source_line=3}}, sharding={{replicated}}'
    root = hlo.parse(program(f"  ROOT x = f32[2] parameter(0), {attributes}"), "text").entry.root
    assert root.op_name == op_name
    assert root.attributes["sharding"] == "{replicated}"


def test_layouts_bounds_and_tuples_in_shapes():
    text = program("  a = (f32[<=4,2]{1,0:T(8,128)S(1)}, (s32[], pred[3]{0})) parameter(0)")
    shape = hlo.parse(text, "text").entry.root.shape
    assert (str(shape), shape.bytes) == ("(f32[4,2], (s32[], pred[3]))", 32 + 4 + 3)


# Spelling -> the same groups; the mesh is of 4 x 2 devices.
SPELLINGS = cases(__file__, "SPELLINGS")


@pytest.mark.parametrize("written", SPELLINGS)
def test_replica_groups_of_every_spelling(written):
    assert [[*group] for group in normalised(written)] == SPELLINGS[written]


@given(groups=st.integers(1, 6), size=st.integers(1, 6))
def test_iota_groups_are_a_partition_with_the_stride_that_they_say(groups, size):
    for order, stride in ((f"[{groups * size}]", 1), (f"[{size},{groups}]T(1,0)", groups)):
        lists = normalised(f"[{groups},{size}]<={order}")
        assert sorted(device for group in lists for device in group) == list(range(groups * size))
        assert placement(lists).size == size
        assert placement(lists).stride == (stride if size > 1 else 1)


def test_fusions_that_run_once_have_no_limit(monkeypatch):
    """A program of 300 unrolled layers has 220,000 instructions in fusions."""
    monkeypatch.setattr("dse.adapters.xla.text.module.MOST_FUSED", 0)
    assert "fusion" in {instruction.opcode for instruction in hlo.parse(TRANSFORMER, "text").instructions}


# What is wrong -> the text, and what the message says.
REFUSED = cases(__file__, "REFUSED")


@pytest.mark.parametrize("wrong", REFUSED)
def test_what_xla_refuses_is_refused_with_line_and_token(wrong):
    body, message = REFUSED[wrong]
    with pytest.raises(DseError) as caught:
        hlo.parse(program(body), "m.hlo")
    assert message in str(caught.value)
    assert str(caught.value).startswith("m.hlo: line ")


def test_a_result_that_contradicts_the_root_is_refused():
    with pytest.raises(DseError, match=r"main is said to give f32\[3\], its root gives f32\[2\]"):
        hlo.parse(program("  a = f32[2] parameter(0)", result="f32[3]"), "m.hlo")


@pytest.mark.parametrize("text", [OLD_PRINTER, LOOP], ids=["old", "new"])
def test_a_text_cut_anywhere_is_refused(text):
    """Cut anywhere in its last computation, a module is none; before it, it may be another."""
    whole = text.rstrip()
    start = whole.index("ENTRY")
    for end in range(start + len("ENTRY"), len(whole), 7):
        with pytest.raises(DseError, match="line"):
            hlo.parse(whole[:end], "cut")


@given(st.data())
def test_a_damaged_text_is_refused_or_read_but_never_breaks_the_reader(data):
    at, other = data.draw(st.integers(0, len(OLD_PRINTER) - 1)), data.draw(st.sampled_from(["", *'(){}[]",=%*/ a0']))
    text = OLD_PRINTER[:at] + other + OLD_PRINTER[at + 1 :]
    with suppress(DseError):
        figures(text)


def test_files_that_cannot_be_read_are_named(tmp_path):
    damaged, binary = tmp_path / "a.hlo.gz", tmp_path / "b.hlo"
    damaged.write_bytes(gzip.compress(OLD_PRINTER.encode())[:-9])
    binary.write_bytes(b"HloModule \xff\xfe")
    for path, message in ((damaged, "damaged gzip"), (binary, "not a text file"), (tmp_path, "is a directory")):
        with pytest.raises(DseError, match=message):
            hlo.load_module(path)
