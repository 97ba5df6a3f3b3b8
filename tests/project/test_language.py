"""Pages, help and messages are in plain English: forbidden constructions only become fewer."""

import pytest

from tests.language import FORBIDDEN, PAGES, allowed, counts, faults, found_in, helps, messages, remarks
from tests.support.cases import cases
from tests.support.paths import ROOT

#: A sentence with each construction, and a plain one that is not counted.
EXAMPLES = cases(__file__, "EXAMPLES")


@pytest.mark.parametrize("name", FORBIDDEN)
def test_a_pattern_finds_its_construction_and_no_plain_sentence(name):
    wrong, plain = EXAMPLES[name]
    assert name in [actual for actual, _ in found_in(wrong)]
    assert name not in [actual for actual, _ in found_in(plain)]


def test_code_and_tables_of_a_page():
    page = "What is `what` ships?\n\n```sh\nwhat ships\n```\n\n| it ships | a |\n|---|---|\n| `ships` | b |\n"
    wrong, long = faults(page + "\n" + "word " * 26 + "end.\n")
    assert [name for name, _ in wrong] == ["ships", "ships"]
    assert len(long) == 1


def test_no_place_has_more_than_its_allowance():
    """`python -m tests.language PAGE` prints the places of a page."""
    limits = allowed()
    grown = {
        text_name: (counted, limits.get(text_name, (0, 0)))
        for text_name, counted in counts().items()
        if any(now > limit for now, limit in zip(counted, limits.get(text_name, (0, 0)), strict=True))
    }
    assert not grown


def test_every_text_is_looked_at():
    assert {page.name for page in PAGES} > {"README.md", "faq.md", "coming_from.md", "CONTRIBUTING.md"}
    assert len(helps()) >= 15
    assert len(messages("dse")) > 200
    assert len(messages("costmodel")) > 50
    assert len([*remarks("dse")]) > 3000
    assert len([*remarks("costmodel")]) > 1000
    assert {*allowed()} <= {*counts()}
    assert ROOT.joinpath("docs", "README.md") in PAGES
