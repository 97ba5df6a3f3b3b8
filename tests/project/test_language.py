"""Pages, help and messages are in plain English: forbidden constructions only become fewer."""

from __future__ import annotations

import pytest

from tests.language import FORBIDDEN, PAGES, ROOT, allowed, counts, faults, found_in, helps, messages

#: A sentence with each construction, and a plain one that is not counted.
EXAMPLES = {
    "what-clause": ("What is not said is assumed.", "What does a step cost?"),
    "whoever": ("Whoever reads sees it.", "A reader sees it."),
    "who-clause": ("For who plans a run.", "For engineers who plan a run."),
    "of which": ("Files of which two are large.", "Two of the files are large."),
    "so many": ("Over so many chips.", "Over N GPUs, so that it fits."),
    "as many as": ("As many as there are.", "One for each core."),
    "such": ("Steps of such designs.", "Units such as GB; no such file; such a design."),
    "of its own": ("A file of its own.", "A separate file; its own file."),
    "it alone": ("Price it alone.", "Only this design."),
    "beside": ("Time beside which it runs.", "Besides, it runs."),
    "the rest of it": ("Choose the rest of it.", "Choose the other parameters."),
    "ships": ("A model that ships.", "A built-in model; relationships."),
    "binds": ("What-if: memory binds.", "The bottleneck is memory; a binding."),
    "seek": ("Seek designs.", "Search designs."),
    "nine of ten": ("9 of 10 steps.", "90 % of steps; 9 of 12."),
    "keeps limits": ("It keeps all limits.", "It fits and keeps the order."),
    "priced": ("A design is priced.", "The price of a GPU is in dollars; prices in dollars."),
    "anew": ("It begins anew.", "It begins again."),
    "stands": ("It stands in the table.", "It stands for a number."),
    "told": ("The user is told.", "The command prints it."),
    "knows": ("It knows nothing.", "It does not use it."),
    "but for": ("All but for one.", "All except one."),
    "to be had": ("They are to be had together.", "They exist together."),
    "exponent": ("A checkpoint each 1.1e+02 min.", "2.5e10 designs, 112 min."),
}


@pytest.mark.parametrize("name", FORBIDDEN)
def test_a_pattern_finds_its_construction_and_no_plain_sentence(name):
    wrong, plain = EXAMPLES[name]
    assert name in [found for found, _ in found_in(wrong)]
    assert name not in [found for found, _ in found_in(plain)]


def test_code_and_tables_of_a_page():
    page = "What is `what` ships?\n\n```sh\nwhat ships\n```\n\n| it ships | a |\n|---|---|\n| `ships` | b |\n"
    wrong, long = faults(page + "\n" + "word " * 26 + "end.\n")
    assert [name for name, _ in wrong] == ["ships", "ships"]
    assert len(long) == 1


def test_no_place_has_more_than_its_allowance():
    """`python -m tests.language PAGE` prints the places of a page."""
    limits = allowed()
    grown = {
        place: (own, limits.get(place, (0, 0)))
        for place, own in counts().items()
        if any(now > limit for now, limit in zip(own, limits.get(place, (0, 0)), strict=True))
    }
    assert not grown


def test_every_text_is_looked_at():
    assert {page.name for page in PAGES} > {"README.md", "faq.md", "coming_from.md", "CONTRIBUTING.md"}
    assert len(helps()) >= 15
    assert len(messages("dse")) > 200
    assert len(messages("costmodel")) > 50
    assert {*allowed()} <= {*counts()}
    assert ROOT.joinpath("docs", "README.md") in PAGES
