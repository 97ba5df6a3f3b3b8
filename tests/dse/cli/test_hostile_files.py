"""Hostile files and words: one line each, in bounded time and memory."""

import gzip
import io
import json
import os
import random
import subprocess
import sys
import time
from functools import cache
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from rich.text import Text

from costmodel.errors import DseError, masked, printable
from costmodel.formats import input_files as pipes
from costmodel.formats.input_files import file_bytes
from dse.adapters.xla import hlo
from dse.adapters.xla.text.module import repeated_instructions
from dse.cli import main
from dse.output import plain_console
from tests.fuzz import database
from tests.fuzz.seeds import CORPUS, words
from tests.fuzz.targets import TARGETS
from tests.support.cases import cases
from tests.support.commands import json_of, outputs_of, stderr_of
from tests.support.paths import ROOT

SPACE = cases(__file__, "SPACE")


def space(model: str = "gpt_22b", size: str = "64", rule: str = "peak_memory <= 80 GB") -> str:
    return SPACE.format(model=model, size=size, rule=rule)


def calls(levels: int, opcode: str = "call", how: str = "to_apply") -> str:
    """A program whose computations each run the one before twice: 2^levels instructions in all."""
    rest = ", kind=kLoop" if opcode == "fusion" else ""
    lines = ["HloModule m", "f0 {", "  p = f32[8] parameter(0)", "  ROOT a = f32[8] add(p, p)", "}"]
    for level in range(1, levels):
        twice = [f"  {label} = f32[8] {opcode}({of}){rest}, {how}=f{level - 1}" for label, of in ("cp", "dc")]
        lines += [f"f{level} {{", "  p = f32[8] parameter(0)", *twice, "}"]
    body = f"  ROOT r = f32[8] {opcode}(p){rest}, {how}=f{levels - 1}"
    return "\n".join([*lines, "ENTRY e {", "  p = f32[8] parameter(0)", body, "}", ""])


def aicb(rows: int) -> str:
    row = "\t-1\t1\tNONE\t0\t1\tNONE\t0\t1\tNONE\t0\t1"
    return "\n".join([
        "HYBRID_TRANSFORMER_FWD_IN_BCKWD model_parallel_NPU_group: 1 ep: 1 pp: 1 vpp: 1 ga: 1 all_gpus: 8",
        str(rows), *(f"row{number}{row}" for number in range(rows)), "",
    ])  # fmt: skip


def array(dims: str) -> str:
    return f"HloModule m\nENTRY e {{\n  p = f32[{dims}] parameter(0)\n  ROOT q = f32[{dims}] add(p, p)\n}}\n"


def bomb() -> bytes:
    """A module that is large once it is unpacked."""
    return gzip.compress(b"HloModule m\n" + b" " * (1 << 28), 1)


#: Instructions of a program that takes more than 5 s.
LINES = "".join(f"  q{number} = f32[1] abs(p)\n" for number in range(20_000))
EVALUATE = ("evaluate", "--set", "tp=1", "--set", "pp=1", "--set", "micro_batch_size=1")
#: Name -> command, file, its content, text of the only line on stderr.
REFUSED: dict[str, Any] = {
    "a device as a model": (EVALUATE, "s.yaml", space(model="/dev/zero"), "not a regular file"),
    "digits in a formula": (EVALUATE, "s.yaml", space(rule="1 < " + "9" * 31_000), "longer than any"),
    "digits with a unit": (EVALUATE, "s.yaml", space(rule=f"1 GB < {'9' * 31_000} GB"), "longer than any"),
    "brackets in a formula": (EVALUATE, "s.yaml", space(rule="(" * 100_000), "longer than any"),
    # Our limit or that of the library, which has one since PyYAML 6.0.4: "exceeded maximum nesting depth".
    "brackets in YAML": (EVALUATE, "s.yaml", "model: " + "[" * 100_000, "nest"),
    "a size of 400 digits": (EVALUATE, "s.yaml", space(size="9" * 400), "no more than 350 characters"),
    "too large with a unit": (EVALUATE, "s.yaml", space(rule="step_time < 1e999 s"), "number is too large"),
    "an alias of nothing": (EVALUATE, "s.yaml", "model: *nothing", "aliases"),
    "an escape in a formula": (EVALUATE, "s.yaml", space(rule='"\\e[31m < 1"'), "\\x1b[31m"),
    "JSON of 5,000 digits": (("import",), "c.json", '{"hidden_size":' + "9" * 5000 + "}", "not JSON"),
    "brackets in JSON": (("import",), "c.json", "[" * 100_000, "nested too deeply"),
    "an array of 400 digits": (("cost",), "a.hlo", array("9" * 400), "at most 1e+18 elements"),
    "an array of 5,000 digits": (("cost",), "a.hlo", array("9" * 5000), "longer than any"),
    "brackets in HLO": (("cost",), "a.hlo", array("1").replace("f32[1] add", "(" * 1500), "more than 1,000 others"),
    "a large program": (("cost",), "l.hlo", array("1").replace("  ROOT", LINES + "  ROOT"), "add --large"),
    "a billion devices": (("cost",), "d.hlo", array("1").replace("m", "m, num_partitions=5000000", 1), "at most 4,194"),
    "blanks in a set-up": (("cost",), "t.txt", "execution {" + " " * (5 << 20), "at most 1,048,576 are read"),
    "lines without fields": (("cost",), "t.txt", aicb(1) + "a\n" * (20 << 20), "and at least 980 more mistakes"),
    "a header of 40 MiB": (("cost",), "t.txt", aicb(1).replace("ga:", "1 pp:" * (8 << 20)), "characters; at most"),
    "a packed bomb": (("cost",), "b.hlo", bomb, "unpacks to"),
    "doubled fusions": (("cost",), "f.hlo", calls(40, "fusion", "calls"), "at most 100,000 more are read"),
    "rows of one cell": (("validate",), "t.csv", "row_type,dataset,tp\n" + "x\n" * 100_000, "at most 20,000 are"),
    "an underscore in a size": (EVALUATE, "s.yaml", space(size="2_0"), "'_0' is not a unit"),
    "an underscore in a formula": (EVALUATE, "s.yaml", space(rule="tp <= 8_0"), "a number has no underscores"),
    "an underscore with a unit": (EVALUATE, "s.yaml", space(rule="step_time < 8_0 s"), "a number has no underscores"),
    "digits of another script": (EVALUATE, "s.yaml", space(size="\uff12"), "expected a number"),
    "another program": (EVALUATE, "n.yml", "base_model: a/b\nmodel:\n" + "    - 1\n" * 99, "dse does not read"),
    "a key with a line break": (EVALUATE, "s.yaml", space(size='1, "a\\nb": 2'), "a name has no line breaks"),
    "a table of no text": (("validate",), "t.csv", b"id\xff\xfe", "not a text file"),
}  # fmt: skip


#: Commands one after the other in a process of 1 GB: exit code, stderr and CPU time of each. [s]
IN_TURN = cases(__file__, "IN_TURN")


def ends(folder: Path, commands: list[list[str]]) -> list[tuple[int, str, float]]:
    """Exit code, stderr and CPU time of commands in a folder. [s]"""
    one = {"OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1", "PYTHONPATH": str(ROOT)}
    done = subprocess.run([sys.executable, "-c", IN_TURN], cwd=folder, input=json.dumps(commands), text=True,
                          env={**os.environ, **one}, capture_output=True, check=True)  # fmt: skip
    return [json.loads(line) for line in done.stdout.splitlines()]


@pytest.fixture(scope="module")
def answers(tmp_path_factory) -> dict[str, tuple[int, str, float]]:
    """Exit code, stderr and CPU time of the command on each file. [s]"""
    folder, commands = tmp_path_factory.mktemp("refused"), []
    for number, ((name, *options), file, content, _) in enumerate(REFUSED.values()):
        (folder / str(number)).mkdir()
        content = content() if callable(content) else content
        (folder / str(number) / file).write_bytes(content if isinstance(content, bytes) else content.encode())
        commands.append([name, f"./{number}/{file}", *options])
    return dict(zip(REFUSED, ends(folder, commands), strict=True))


@pytest.mark.parametrize("case", REFUSED)
def test_a_file_that_cannot_be_read_is_one_line(case, answers):
    """Within 5 s of computing and 1 GB."""
    code, said, took = answers[case]
    assert (code, took < 5) == (1, True)
    assert REFUSED[case][-1] in said
    assert "Traceback" not in said
    assert all(line.startswith("dse: ") and len(line) < 800 for line in said.splitlines())
    assert "\x1b" not in said


@pytest.mark.parametrize(
    ("file", "content"), [("shared.hlo", calls(40)), ("long.txt", aicb(40_000))], ids=["calls", "rows"]
)
@pytest.mark.slow
def test_a_small_file_takes_little_time_and_memory(file, content, tmp_path):
    (tmp_path / file).write_text(content)
    [(code, _, took)] = ends(tmp_path, [["cost", file]])
    assert (code, took < 5) == (0, True)


#: Pieces that open something, or are skipped, and what closes them.
PIECES = {"(": ")", "[": "]", "{": "}", "(\n": ")", "${B:-": "}", "$(": ")", '{"a":': "}", "[[": "]]", "a: {": "}",
          "f32[": "]", "(f32[], ": ")", "<(": ")", "a.": "", "\n": "", " ": "", "- ": "", "\t": "",
          "a=": "", "${": "}"}  # fmt: skip
READERS = ("yaml", "formula", "quantity", "model", "hugging-face", "hlo", "aicb", "busbw", "dfmodel", "deepflow",
           "megatron", "torchtitan", "nemo", "measurements", "designs")  # fmt: skip


@pytest.mark.parametrize("reader", READERS)
def test_100_kb_of_one_piece_take_no_time(reader, tmp_path):
    """Nested or in a row, within a file that the reader accepts: the time grows with the length, not its square."""
    target, rng = TARGETS[reader], random.Random(reader)
    files, taken = [file[:20_000] for file in target.seeds()], {}
    for piece, closing in PIECES.items():
        file, count = rng.choice(files), 100_000 // len(piece)
        for body in (piece * count, piece * count + closing * count):
            index = rng.choice((0, len(file), rng.randrange(len(file) + 1)))
            start = time.process_time()
            target(file[:index] + body.encode() + file[index:], tmp_path)
            taken[piece, index] = time.process_time() - start
    assert {case: seconds for case, seconds in taken.items() if seconds > 1} == {}


@pytest.mark.parametrize("piece", [b"\n", b" ", b"model:\n", b"\n  b", b"(", b"schema", b"execution "])
def test_the_kind_of_a_file_is_recognized_at_once(piece, tmp_path):
    (tmp_path / "file").write_bytes(piece * (1_000_000 // len(piece)))
    start = time.process_time()
    assert main(["evaluate", str(tmp_path / "file"), "--system", "h100_80g_dgx"]) == 1
    assert time.process_time() - start < 2


def test_what_is_called_often_is_listed_once_and_counted():
    module = hlo.parse(calls(40), "calls")
    graph = hlo.graph(module)
    assert repeated_instructions(module) > 2**40
    assert [kernel.count for kernel in graph.kernels] == [2**39]
    assert any("calls shared" in note for note in graph.notes)
    few = hlo.graph(hlo.parse(calls(6), "calls"))
    assert sum(kernel.count for kernel in few.kernels) == len(few.kernels) == 2**5


@pytest.mark.parametrize("words", [["evaluate"], ["cost"], ["import"]])
def test_a_pipe_that_is_silent_is_not_waited_for(words, tmp_path, monkeypatch):
    monkeypatch.setattr(pipes, "SILENCE", 0.05)
    os.mkfifo(tmp_path / "pipe.yaml")
    assert "a pipe that is silent" in stderr_of(*words, str(tmp_path / "pipe.yaml"))


def pipe(content: bytes) -> str:
    """A pipe that holds so much and ends, as a shell names it."""
    end, begin = os.pipe()
    os.write(begin, content)
    os.close(begin)
    return f"/dev/fd/{end}"


def test_a_pipe_is_read_as_a_file_is(tmp_path):
    content = array("8").encode()
    (tmp_path / "p.hlo").write_bytes(content)
    files = ("p.hlo", pipe(content), pipe(gzip.compress(content)))
    figures = [json_of("cost", file, "--system", "a100_80g_dgx")["figures"] for file in files]
    assert figures[0] == figures[1] == figures[2]


def test_a_pipe_is_read_no_further_than_a_limit(monkeypatch):
    monkeypatch.setattr(pipes, "MOST_PIPED", 1000)
    with pytest.raises(DseError, match="a pipe of more than 1,000 bytes"):
        file_bytes(Path(pipe(b"a" * 4000)))


@pytest.mark.slow
def test_a_width_that_is_none_and_a_closed_output_are_no_tracebacks(monkeypatch):
    for width in ("abc", "9" * 30):
        monkeypatch.setenv("COLUMNS", width)
        assert main(["models"]) == 0
    code = "import os, sys; os.close(1); from dse.start import main; sys.exit(main())"
    done = subprocess.run([sys.executable, "-c", code, "models"], capture_output=True, check=False)
    assert b"Traceback" not in done.stderr


def test_names_that_are_no_text_are_refused_or_shown_as_such():
    assert "??.yaml: no such file" in stderr_of("models", os.fsdecode(b"./\xff\xfe.yaml"))
    assert "\x1b" not in stderr_of("search", "--budget", "3", "--study", "\x1b[31mred")
    assert "a name is text" in stderr_of("search", "--study", os.fsdecode(b"\xff\xfe"))


RED = "\x1b[31m"


def test_what_is_named_so_as_to_steer_a_terminal_is_shown_as_text(tmp_path):
    (tmp_path / "p.hlo").write_text(f'HloModule m\nENTRY e {{\n  p = f32[8] parameter(0)\n  ROOT a{RED} = '
                                    f'f32[8] add(p, p), metadata={{op_name="{RED}/net"}}\n}}\n')  # fmt: skip
    file = tmp_path / f"{RED}.hlo"
    file.write_text(array("8"))
    assert RED not in stderr_of("cost", str(tmp_path / "p.hlo"), "--system", "a100_80g_dgx")
    told = outputs_of("cost", str(file))
    assert r"\x1b[31m.hlo: no --system" in told.err
    assert RED not in "".join(told)
    stream = io.StringIO()
    plain_console(stream, 40).print(Text(f"a{RED}b"))
    assert stream.getvalue() == "a\\x1b[31mb\n"


def test_passwords_are_not_told():
    urls = ("foo://me:se/cret@host/db", "foo://host/db?a=b&password=secret", "sqlite:///no/d?password=secret")
    for url in urls:
        assert "cret" not in stderr_of("studies", "--storage", url)
    assert masked("no secret: https://host/page?x=1") == "no secret: https://host/page?x=1"
    assert printable("tp·pp ≤ 8\n") == "tp·pp ≤ 8\n"


def test_a_mistake_of_the_program_itself_is_one_line_and_a_report(monkeypatch, tmp_path):
    import dse.cli.commands.list

    def fail(*arguments):
        raise ZeroDivisionError("postgresql://me:secret@host/db")

    monkeypatch.setattr(dse.cli.commands.list, "run", fail)
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    told = stderr_of("models")
    [report] = tmp_path.iterdir()
    assert told == f"dse: internal error (ZeroDivisionError); please report it with {report}\n"
    assert "ZeroDivisionError: postgresql://me:***@host/db" in report.read_text()


#: Change of a database that damages it -> the table that the line of every command names.
DAMAGE = cases(__file__, "DAMAGE")


@pytest.fixture(scope="module")
def stored(tmp_path_factory):
    return database.stored(tmp_path_factory.mktemp("stored"))


@pytest.mark.parametrize("statement", DAMAGE)
def test_a_study_that_cannot_be_read_is_named_with_its_table(statement, stored, tmp_path):
    file = tmp_path / "dse.db"
    assert database.changed(file, stored[0], statement, ())
    for line in ("trials s --format json", "pareto s", "explain s", "resume s --budget 8"):
        [told] = stderr_of(*line.split(), "--storage", f"sqlite:///{file}").splitlines()[-1:]
        assert told.startswith(f"dse: study 's' of sqlite:///{file} cannot be read: {DAMAGE[statement]}")
        assert told.endswith("restore a copy of the database, or delete the study with `dse studies s --delete`")
    assert main(["delete", "s", "--yes", "--storage", f"sqlite:///{file}"]) == 0


@pytest.mark.parametrize("waiting", ["5", "[]", '{"base": 1, "trials": [{}], "memory": {}}'])
def test_what_waits_for_its_turn_and_is_no_batch_is_told(waiting, stored, tmp_path):
    file, insert = tmp_path / "dse.db", "INSERT INTO study_user_attributes (study_id, key, value_json) VALUES "
    rows = ", ".join(f"(1, 'dse:parked:{number}', '{waiting}')" for number in range(9))
    assert database.changed(file, stored[0], insert + rows, ())
    error = stderr_of("resume", "s", "--budget", "50", "--storage", f"sqlite:///{file}")
    assert f"study 's' of sqlite:///{file} cannot be read: study_user_attributes: " in error


def test_whatever_stands_in_a_database_every_command_has_a_result_or_a_line(tmp_path):
    """Some pairs of a change and a command, at random; `python -m tests.fuzz.database` tries them all."""
    assert not [trial for trial in database.trials(tmp_path, seed=1, share=0.00015) if trial[2]]


@pytest.mark.parametrize("name", TARGETS)
@settings(max_examples=15, deadline=None, derandomize=True, suppress_health_check=list(HealthCheck))
@given(data=st.data())
def test_a_reader_reads_a_file_or_says_what_is_wrong(name, data, tmp_path):
    TARGETS[name](data.draw(spoilt(name)), tmp_path)


@cache
def grown(name: str) -> tuple[list[bytes], list[bytes]]:
    """Files that a reader reads, and the words that they are made of."""
    files = [*TARGETS[name].seeds()]
    return files, [word.encode() for word in words(files)]


@st.composite
def spoilt(draw, name: str) -> bytes:
    """A file that a reader reads, with some pieces of it cut out, doubled or replaced by words."""
    files, pieces = grown(name)
    content = draw(st.sampled_from(files))
    for _ in range(draw(st.integers(1, 4))):
        start = draw(st.integers(0, len(content)))
        cut = draw(st.integers(0, 20))
        piece = draw(st.sampled_from([b"", content[start : start + 4 * cut], *pieces]))
        content = content[:start] + piece + content[start + cut :]
    return content


KEPT = [pytest.param(path, id=f"{path.parent.name}-{path.name}") for path in sorted(CORPUS.glob("*/*"))]


@pytest.mark.parametrize("path", KEPT)
def test_what_once_made_trouble_does_no_more(path, tmp_path):
    TARGETS[path.parent.name](path.read_bytes(), tmp_path)
