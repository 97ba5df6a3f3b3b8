"""The same inputs, seed and versions give the same bytes, whoever asks: tables, pages, exports."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.support.cases import cases
from tests.support.paths import ROOT

#: What a process makes, a command a line; {f} is a folder of its own.
COMMANDS = cases(__file__, "COMMANDS")
PROGRAM = cases(__file__, "PROGRAM")


def made(folder: Path, **environment: str) -> dict[str, bytes]:
    """Content of the files that the commands print and write in a folder, by name."""
    folder.mkdir(parents=True)
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM], input=COMMANDS.format(f="files"), cwd=folder,
        env={**os.environ, "PYTHONPATH": str(ROOT), **environment}, capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    files = sorted(path for path in folder.rglob("*") if path.is_file() and "dse.db" not in path.name)
    return {str(path.relative_to(folder)): path.read_bytes() for path in files}


@pytest.fixture(scope="module")
def both(tmp_path_factory) -> tuple[dict[str, bytes], dict[str, bytes]]:
    """Files of two processes with different hashes, folders, threads and time zones."""
    base = tmp_path_factory.mktemp("determinism")
    one = made(base / "one", PYTHONHASHSEED="1", OPENBLAS_NUM_THREADS="1", TZ="UTC")
    other = made(base / "another" / "one", PYTHONHASHSEED="77", OPENBLAS_NUM_THREADS="2", TZ="Asia/Tokyo")
    return one, other


@pytest.mark.slow
def test_two_processes_make_the_same_bytes(both):
    one, other = both
    assert [*one] == [*other]
    assert len(one) > 30
    assert [name for name in one if one[name] != other[name]] == []
