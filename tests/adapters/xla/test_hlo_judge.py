"""XLA itself as the judge, where jaxlib is installed: the same texts, instructions and totals."""

import pytest

from costmodel import DseError
from dse.adapters.xla import hlo
from tests.adapters.xla.test_hlo_reader import REFUSED
from tests.support.cases import cases
from tests.support.hlo_texts import GPT, OLD_PRINTER, PRINTERS, SEED, TRANSFORMER, figures, program

jax = pytest.importorskip("jax", reason="jax is not installed")
jaxlib = pytest.importorskip("jaxlib._jax", reason="jaxlib is not installed")

TEXTS = {"old": OLD_PRINTER, "transformer": TRANSFORMER, "gpt": GPT}
if SEED.exists():
    TEXTS["reference"] = SEED.read_text()


def judged(text: str):
    """XLA's module of a text."""
    read = getattr(jaxlib, "hlo_module_from_text", None)
    if read is None:
        read = pytest.importorskip("jaxlib._hlo").hlo_module_from_text
    return read(text)


@pytest.mark.parametrize("name", TEXTS)
def test_instructions_are_those_of_xla(name):
    for own, other in zip(hlo.parse(TEXTS[name], name).computations, judged(TEXTS[name]).computations(), strict=True):
        assert own.name == other.name
        theirs = {each.name: [operand.name for operand in each.operands()] for each in other.instructions()}
        assert {each.name: [operand.name for operand in each.operands] for each in own.instructions} == theirs


@pytest.mark.parametrize("name", TEXTS)
def test_totals_are_those_of_xla(name):
    client = jax.devices("cpu")[0].client
    told, totals = figures(TEXTS[name]), jaxlib.hlo_module_cost_analysis(client, judged(TEXTS[name]))
    assert told["xla.flops"] == pytest.approx(totals["flops"], rel=1e-6)
    assert told["xla.transcendentals"] == pytest.approx(totals.get("transcendentals", 0), rel=1e-6)
    assert told["xla.bytes_accessed"] == pytest.approx(totals["bytes accessed"], rel=1e-6)
    assert told["xla.bytes_accessed_out"] == pytest.approx(totals["bytes accessedout{}"], rel=1e-6)


@pytest.mark.parametrize("printer", PRINTERS)
def test_printings_that_say_the_same_are_ones_that_xla_reads(printer):
    judged(PRINTERS[printer](OLD_PRINTER))


#: Where XLA says so; other mistakes end its process.
JUDGED = cases(__file__, "JUDGED")


@pytest.mark.parametrize("wrong", JUDGED)
def test_what_is_refused_xla_refuses_too(wrong):
    text = program(REFUSED[wrong][0])
    with pytest.raises(DseError):
        hlo.parse(text, "text")
    with pytest.raises((ValueError, RuntimeError)):
        judged(text)
