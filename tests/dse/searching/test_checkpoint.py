"""Enumerations in parts, with checkpoints that survive kills, power cuts and the loss of a cluster."""

import os
import random
import shutil
import signal
import subprocess
import sys
import time

import pytest

import dse
from costmodel import DseError
from costmodel.formats.input_files import dump
from dse.cli import main
from dse.pricing import workers as pricers
from dse.pricing.workers import Workers
from dse.searching.exact import checkpoint as checkpoints
from dse.searching.exact import enumeration
from dse.searching.exact import exact_front as exact
from dse.searching.exact.exact_front import exact_front, merged_front
from dse.spaces.space import Space
from dse.storage import atomic_files
from tests.dse.searching.test_enumeration import random_space, same
from tests.support.commands import stderr_of, stdout_of

LAYOUTS = "gpt3_175b_1024_a100"


@pytest.fixture(scope="module")
def layouts() -> Space:
    return Space.load(LAYOUTS)


@pytest.mark.parametrize(("method", "seed"), [("list", 5), pytest.param("bounds", 5, marks=pytest.mark.slow)])
def test_parts_in_any_order_are_the_whole(method, seed, tmp_path, monkeypatch):
    monkeypatch.setattr(exact, "UNITS", 3)
    space, rng = random_space(seed), random.Random(seed)
    parts = rng.randrange(2, 5)
    paths = [tmp_path / f"part{part}" for part in range(1, parts + 1)]
    for part, path in enumerate(paths, start=1):
        exact_front(space, method=method, checkpoint=path, part=(part, parts), workers=Workers(1 + (part == 2)))
    whole = exact_front(space, method=method)
    for _ in range(3):
        rng.shuffle(paths)
        assert same(merged_front(paths), whole)
        assert same(merged_front([*paths, paths[0]]), whole)
    with pytest.raises(DseError, match=r"parts that are missing or not finished: \d"):
        merged_front(paths[1:])


@pytest.mark.parametrize(("method", "cuts"), [("list", 3), pytest.param("bounds", 2, marks=pytest.mark.slow)])
def test_a_file_cut_anywhere_is_continued(method, cuts, tmp_path, monkeypatch):
    """A power cut leaves any beginning of the file, the last line torn or of zeros."""
    monkeypatch.setattr(exact, "UNITS", 3)
    space = random_space(5)
    usual = exact_front(space, method=method, checkpoint=tmp_path / "whole")
    content = (tmp_path / "whole").read_bytes()
    first, rng = content.index(b"\n") + 1, random.Random(0)
    ends = [first, len(content) - 1, rng.randrange(first, len(content)), len(content)]
    for number, end in enumerate(ends[-cuts:]):
        path = tmp_path / f"cut{number}"
        path.write_bytes(content[:end] + bytes(rng.randrange(3)) * (end < len(content)))
        assert same(exact_front(space, method=method, checkpoint=path), usual)
        assert path.read_bytes() == content
    monkeypatch.setattr(enumeration, "evaluate_unique", None)  # everything is stored
    monkeypatch.setattr(exact, "Search", None)
    assert same(exact_front(space, method=method, checkpoint=path), usual)


def test_the_python_call_continues_from_its_checkpoint(tmp_path, monkeypatch):
    space, path = random_space(3), tmp_path / "big.ckpt"
    whole = dse.exact_front(space, method="list", checkpoint=str(path))
    assert same(whole, dse.exact_front(space, method="list"))
    monkeypatch.setattr(enumeration, "evaluate_unique", None)  # everything is stored
    assert same(dse.exact_front(space, method="list", checkpoint=path), whole)
    with pytest.raises(DseError, match="another"):
        dse.exact_front(random_space(4), method="list", checkpoint=path)


@pytest.mark.slow
def test_a_killed_command_continues(layouts, tmp_path):
    """The same command, killed again and again, ends with the bytes of one that nobody disturbed."""
    space, path, table = tmp_path / "space.yaml", tmp_path / "big.ckpt", tmp_path / "front.csv"
    parameters = {**layouts.data["parameters"], "micro_batch_size": [1, 2, 3, 4, 6, 8, 12]}
    space.write_text(dump({**layouts.data, "parameters": parameters, "given": {**layouts.data["given"]}}))
    command = [sys.executable, "-m", "dse", "enumerate", str(space), "--checkpoint", str(path), "-o", str(table)]
    rng, lines = random.Random(0), 0
    for _ in range(2):
        process = subprocess.Popen(command, stderr=subprocess.DEVNULL)
        while process.poll() is None and (path.read_bytes().count(b"\n") if path.exists() else 0) < lines + 3:
            time.sleep(0.001)
        time.sleep(rng.random() / 100)
        process.send_signal(signal.SIGKILL)
        process.wait()
        lines = path.read_bytes().count(b"\n")
    assert lines > 4
    assert subprocess.run(command, check=False, stderr=subprocess.PIPE).returncode == 0
    assert main(["enumerate", str(space), "-o", str(tmp_path / "usual.csv")]) == 0
    assert table.read_bytes() == (tmp_path / "usual.csv").read_bytes()


@pytest.mark.slow
def test_only_what_belongs_together_is_put_together(layouts, tmp_path, monkeypatch):
    paths = [tmp_path / "part1", tmp_path / "part2"]
    for part, path in enumerate(paths, start=1):
        exact_front(layouts, checkpoint=path, part=(part, 2))
    shutil.copy(paths[0], tmp_path / "copy")
    for change, words in [
        ({"part": (2, 2)}, "another part"),
        ({"part": (1, 3)}, "another number of parts"),
        ({"best": [1.0, 2.0]}, "another study"),
    ]:
        with pytest.raises(DseError, match=f"part1: was made with {words}.*; name another file"):
            exact_front(layouts, checkpoint=paths[0], **{"part": (1, 2), **change})
    other = Space.from_text(dump({**layouts.data, "given": {**layouts.data["given"], "seq_len": 1024}}))
    with pytest.raises(DseError, match="another space"):
        exact_front(other, checkpoint=paths[0], part=(1, 2))
    monkeypatch.setattr(checkpoints, "program_digest", lambda: "dse 0.0")
    with pytest.raises(DseError, match="part1: was made with another dse or NumPy"):
        merged_front(paths)
    monkeypatch.undo()
    monkeypatch.setattr(pricers.Pricer, "digest", "another model")
    with pytest.raises(DseError, match="part1: was made with a cost model with other results"):
        merged_front(paths)
    assert paths[0].read_bytes() == (tmp_path / "copy").read_bytes()


def test_a_file_of_another_kind_or_writer_stays_as_it_is(layouts, tmp_path):
    path = tmp_path / "part1"
    for content in (b"tp,pp\n1,2\n", b"\0" * 100, b"[" * 5000):
        path.write_bytes(content)
        for read in (lambda: exact_front(layouts, checkpoint=path), lambda: merged_front([path])):
            with pytest.raises(DseError, match="not a checkpoint"):
                read()
        assert path.read_bytes() == content
    path.unlink()
    exact_front(layouts, checkpoint=path)
    content = path.read_bytes()
    forged = (line[9:-1].replace(b'"costs": [[', b'"costs": [[-') for line in content.splitlines(keepends=True))
    for changed, message in [
        (b"".join(map(atomic_files.framed, forged)), "a checkpoint was changed"),
        (content[:300] + b"#" + content[301:], r"not a checkpoint, or damaged \(line 1\)"),
        (content[:-300] + b"#" + content[-299:] + content.splitlines(keepends=True)[-1], r"damaged \(line \d+\)"),
    ]:
        path.write_bytes(changed)
        with pytest.raises(DseError, match=message):
            exact_front(layouts, checkpoint=path)


def test_the_disk_has_the_names_of_written_files(tmp_path, monkeypatch):
    """A power cut forgets the name of a file whose folder was not synced."""
    synced = []
    monkeypatch.setattr(os, "fsync", lambda number: synced.append(os.path.realpath(f"/proc/self/fd/{number}")))
    atomic_files.write_beside(tmp_path / "a", [b"1"], durable=True)
    assert synced[-1] == str(tmp_path.resolve())


def test_the_command_enumerates_parts_and_merges_them():
    outs = [stdout_of("enumerate", LAYOUTS, "--part", f"{part}/2", "-o", f"part{part}") for part in (2, 1)]
    assert "part 1/2: 1,1" in outs[1]
    assert stdout_of("enumerate", "--merge", "part2", "part1") == stdout_of("enumerate", LAYOUTS)
    os.mkfifo("pipe")
    for words, message in [
        (["--merge", "part1"], "missing or not finished: 2/2"),
        ([LAYOUTS, "--part", "1/2"], "name its checkpoint with -o"),
        ([LAYOUTS, "--merge", "part1", "part2", "--set", "tp=1"], "leave options out"),
        (["gpt_1t_power_split", "--merge", "part1", "part2"], "another space"),
        (["--merge", "nothing"], "nothing: No such file"),
        (["--merge", "part1", "pipe"], "pipe: a pipe or device"),
        (["--merge", "part1", "part2", "-o", "./part2"], "-o part2 is one of the files"),
    ]:
        assert message in stderr_of("enumerate", *words)
    for part in ("0/2", "3/2", "1", "1/2/3", "-1/2"):
        assert "--part" in stderr_of("enumerate", LAYOUTS, f"--part={part}", "-o", "x", code=2)
