"""AICB workloads: files both ways, and mistakes of a file."""

import hashlib

import numpy as np
import pytest

from costmodel.errors import DseError
from dse.adapters.simai.files.aicb import load_workload, read_workload, row_lines
from dse.adapters.simai.workload_rows import COLLECTIVES, GROUPS
from tests.support.aicb_files import SMALL, published
from tests.support.cases import cases


def sha256(text):
    return hashlib.sha256(text.encode()).hexdigest()


#: How texts differ that hold the same: in line ends, in columns, in a mark before the first word.
DIALECTS = {
    "no last newline": lambda text: text.rstrip("\n"),
    "empty lines": lambda text: text.replace("\nmlp", "\n\n \t\nmlp", 1) + "\n\n",
    "Windows": lambda text: "\ufeff" + text.replace("\n", "\r\n"),
    "padded columns": lambda text: text.replace("\t", "  \t ").replace(" pp: ", "\t  pp:   "),
    "blanks at the ends": lambda text: text.replace("\n", " \t\n"),
    "leading zeros": lambda text: text.replace("\t100\n", "\t0100\n").replace("\n5\n", "\n 05\n"),
    "fractions of bytes": lambda text: text.replace("\t33554432\t", "\t33554432.5\t"),
}


@pytest.mark.parametrize("dialect", DIALECTS)
def test_a_file_keeps_its_bytes_whatever_its_columns_and_line_ends(dialect, tmp_path):
    path, text = tmp_path / "workload.txt", DIALECTS[dialect](SMALL)
    path.write_bytes(text.encode())
    file = load_workload(path)
    assert file.text.encode() == path.read_bytes()
    plain = read_workload(SMALL, "small.txt")
    assert file.words == plain.words
    for name in ("time", "collective", "group", "message_bytes", "delay"):
        assert np.array_equal(getattr(file.workload, name), getattr(plain.workload, name))
    wrong = text.replace("ALLTOALL_EP", "ALLTOALL_XP")
    line = next(n for n, line in enumerate(wrong.split("\n"), start=1) if "_XP" in line)
    with pytest.raises(DseError, match=f"x.txt:{line}: field 4: 'ALLTOALL_XP': unknown collective"):
        read_workload(wrong, "x.txt")


def test_the_group_of_a_collective_follows_from_its_column_and_suffix():
    rows = read_workload(SMALL, "small.txt").workload
    actual = [
        [(COLLECTIVES[k], GROUPS[g]) for k, g in zip(*row, strict=True) if k]
        for row in zip(rows.collective[0].tolist(), rows.group[0].tolist(), strict=True)
    ]
    assert actual == [
        [("reduce_scatter", "dp")],
        [("all_reduce", "tp"), ("broadcast", "tp")],
        [("all_gather", "tp"), ("reduce_scatter", "tp")],
        [("all_to_all", "ep"), ("all_to_all", "ep"), ("all_reduce", "dp_ep")],
        [("all_reduce", "tp")],
    ]


@pytest.mark.parametrize(("old", "new", "message"), cases(__file__, "MISTAKES"), ids=lambda text: repr(text))
def test_a_mistake_is_told_with_its_line(old, new, message):
    with pytest.raises(DseError) as told:
        read_workload(SMALL.replace(old, new), "small.txt")
    assert f"small.txt:{message}" in str(told.value)


def test_all_mistakes_are_told_at_once():
    wrong = SMALL.replace("\n5\n", "\n6\n").replace("ALLGATHER", "ALLGATHERED").replace("pp: 3 ", "")
    with pytest.raises(DseError) as told:
        read_workload(wrong, "small.txt")
    assert [line.split(": ")[0] for line in str(told.value).splitlines()] == [f"small.txt:{line}" for line in (1, 2, 5)]


def test_checkpoints_repeat_the_forward_pass_of_rows():
    """From the row that starts a segment up to, not including, the one that initiates; the first alone."""
    marked = SMALL.replace("checkpoints: 0 checkpoint_initiates: 0", "checkpoints: 2 1 2 checkpoint_initiates: 1 3")
    file = read_workload(marked, "small.txt")
    repeated = (file.executed.time - file.workload.time)[0] * 1e9
    assert repeated[:, 0] == pytest.approx([0, 17000, 29000, 0, 0])
    assert not repeated[:, 1:].any()
    assert file.text == marked
    assert read_workload(SMALL, "small.txt").executed.time.tolist() == file.workload.time.tolist()


# Published file -> its SHA-256, its number of rows, and one of them.
PUBLISHED = cases(__file__, "PUBLISHED")


@pytest.mark.parametrize("name", PUBLISHED)
def test_published_files_survive_reading_and_writing(name, tmp_path):
    """Byte for byte; the rows that are read are written as they were."""
    text, (digest, number, row) = published(name), PUBLISHED[name]
    assert sha256(text) == digest
    assert len(text.splitlines()) - 2 == number
    assert f"\n{row}\n" in text
    path = tmp_path / "workload.txt"
    path.write_text(text)
    file = load_workload(path)
    assert file.text == text
    assert row_lines(file.workload) == text.splitlines()[2:]
