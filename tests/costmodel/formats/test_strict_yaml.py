"""Files are read strictly: what is written is what is meant, and every mistake is told at once."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from costmodel import DseError
from costmodel.formats.input_files import Section, dump, parse, read_text
from tests.support.cases import cases


def test_numbers_are_numbers_and_words_are_words():
    data = parse("a: 1e12\nb: [on, no, 'true', true, 017, 12:30, 2026-01-31, 80 GB]\nc: {d: ~}\n", "f").data
    assert data == {"a": 1e12, "b": ["on", "no", "true", True, 17, "12:30", "2026-01-31", "80 GB"], "c": {"d": None}}
    assert isinstance(data["a"], float)


UNREADABLE = cases(__file__, "UNREADABLE")


@pytest.mark.parametrize(("text", "message"), UNREADABLE)
def test_a_text_that_is_no_mapping_is_one_clear_line(text, message):
    with pytest.raises(DseError) as caught:
        parse(text, "f")
    assert message in str(caught.value)
    assert "\n" not in str(caught.value)


def test_endless_nesting_is_refused():
    with pytest.raises(DseError):
        parse("a: " + "[" * 100_000, "f")


def test_a_file_that_cannot_be_read_says_why(tmp_path):
    (tmp_path / "binary.yaml").write_bytes(b"\xff\xfe\x00\x01")
    for name, message in (("none.yaml", "no such file"), ("", "is a directory"), ("binary.yaml", "not a text file")):
        with pytest.raises(DseError, match=message):
            read_text(tmp_path / name)


def read_person(text: str) -> tuple[object, ...]:
    section = parse(text, "p.yaml")
    section.only(("name", "height", "mood", "happy", "job"))
    job = section.section("job")
    job.only(("title",))
    parsed = (
        section.text("name"), section.number("height"), section.word("mood", ("calm", "wild")),
        section.switch("happy", default=True), job.text("title"),
    )  # fmt: skip
    section.source.finish()
    return parsed


def test_a_section_is_read_key_by_key():
    text = "name: Ada\nheight: 1.7\nmood: calm\njob: {title: countess}\n"
    assert read_person(text) == ("Ada", 1.7, "calm", True, "countess")


def test_all_mistakes_are_told_at_once_with_their_lines():
    with pytest.raises(DseError) as caught:
        read_person("nmae: Ada\nheight: tall\nmood: wlid\nhappy: 1\njob:\n  titel: x\n")
    assert str(caught.value).splitlines() == [
        "p.yaml:1: name: missing",
        "p.yaml:1: nmae: unknown key; did you mean 'name'?",
        "p.yaml:2: height: 'tall': expected a number",
        "p.yaml:3: mood: 'wlid' is not a value; did you mean 'wild'?",
        "p.yaml:4: happy: 1: expected true or false",
        "p.yaml:5: job: title: missing",
        "p.yaml:6: job.titel: unknown key; did you mean 'title'?",
    ]


words = st.text(st.characters(codec="utf-8", exclude_categories=["Cc", "Cs", "Zl", "Zp"]), max_size=8)
scalars = st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | words
trees = st.recursive(scalars, lambda t: st.lists(t, max_size=3) | st.dictionaries(words, t, max_size=3), max_leaves=8)


@given(st.dictionaries(words, trees, min_size=1, max_size=4))
def test_what_is_dumped_reads_back_the_same(data):
    section = parse(dump(data), "f")
    assert isinstance(section, Section)
    assert section.data == data


@pytest.mark.parametrize(
    "word", ["1e12", "true", "null", "~", "", "017", "-", "on", "1.", ".5", "#", "a: b", "=", "<<"]
)
def test_words_that_look_like_something_else_stay_words(word):
    assert parse(dump({"a": word}), "f").data == {"a": word}
