"""Small HLO modules and ways to print them, shared by the tests of their reader."""

# lines as XLA prints them

import re
from functools import cache
from pathlib import Path

import pytest

from dse.adapters.xla import hlo
from tests.support.cases import cases
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
OLD_PRINTER = cases(__file__, "OLD_PRINTER")


@cache
def analysed(text: str) -> hlo.Analysis:
    """Analysis of a text."""
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
        r'backend_config="((?:[^"\\]|\\.)*)"', lambda actual: "backend_config=" + actual[1].replace('\\"', '"'), text
    )


#: Printings that say the same.
PRINTERS = {
    "no %": without_percent,
    "no shapes of operands": without_operand_shapes,
    "bare JSON": with_bare_json,
    "all of it": lambda text: without_percent(without_operand_shapes(with_bare_json(text))),
}
