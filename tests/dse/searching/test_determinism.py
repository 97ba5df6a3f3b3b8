"""The same inputs, seed and versions give the same bytes, whoever asks: tables, pages, exports."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.support.paths import ROOT

#: What a process makes, a command a line; {f} is a folder of its own.
COMMANDS = """\
search gpt3_175b_1024_a100 --budget 60 --sampler nsga2 --seed 3 --study one --emit aicb --out {f}/out
search llama3_70b_512_h100 --budget 20 --seed 4 --study two
search llama3_70b_64_h100_fsdp --budget 9 --set zero=3 --set recompute=full --set precision=bf16 --study three
search llama3_70b_512_h100 --budget 20 --set schedule=gpipe --set vpp=1 --set pp=4 --study four
pareto one --format table
pareto one --format json
pareto one --format parquet -o {f}/front.parquet
trials one --format csv -o {f}/trials.csv
trials one --format parquet -o {f}/trials.parquet
studies
explain one
report one -o {f}/report.html
export one --format aicb -o {f}/aicb.txt
export one --format chakra -o {f}/chakra
export one --format dfmodel -o {f}/dfmodel.txt
export one --format dfmodel-binary -o {f}/dfmodel.pb
export one --format trace -o {f}/trace.json
export two --format megatron -o {f}/megatron.sh
export two --format nemo -o {f}/nemo.yaml
export three --format astra-sim -o {f}/astra-sim
export three --format torchtitan -o {f}/torchtitan.py
export four --format maxtext -o {f}/maxtext.yml
evaluate gpt3_175b_1024_a100 --set tp=8 --set pp=16 --format json
enumerate gpt3_175b_1024_a100 --set tp=8 --format csv
plan llama3_8b --gpus 16 --system h100_80g_dgx --save {f}/space.yaml
importance one
columns gpt3_175b_1024_a100
"""
PROGRAM = """
import contextlib, io, sys
from dse.cli import main
for number, line in enumerate(sys.stdin.read().splitlines()):
    with open(f"stdout {number}", "w") as out, contextlib.redirect_stdout(out):
        if main(line.split()) not in (0, None):
            print(line, file=sys.stderr)
            sys.exit(1)
"""


def made(folder: Path, **environment: str) -> dict[str, bytes]:
    """What the commands print and write in a folder, by name."""
    folder.mkdir(parents=True)
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM],
        input=COMMANDS.format(f="files"),
        cwd=folder,
        env={**os.environ, "PYTHONPATH": str(ROOT), **environment},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    files = sorted(path for path in folder.rglob("*") if path.is_file() and "dse.db" not in path.name)
    return {str(path.relative_to(folder)): path.read_bytes() for path in files}


@pytest.fixture(scope="module")
def both(tmp_path_factory) -> tuple[dict[str, bytes], dict[str, bytes]]:
    """What two processes make: other hashes, another folder, other threads, another time zone."""
    base = tmp_path_factory.mktemp("determinism")
    one = made(base / "one", PYTHONHASHSEED="1", OPENBLAS_NUM_THREADS="1", TZ="UTC")
    other = made(base / "another" / "one", PYTHONHASHSEED="77", OPENBLAS_NUM_THREADS="2", TZ="Asia/Tokyo")
    return one, other


def test_two_processes_make_the_same_bytes(both):
    one, other = both
    assert [*one] == [*other]
    assert len(one) > 40
    assert [name for name in one if one[name] != other[name]] == []
