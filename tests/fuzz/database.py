"""Content of a database that nobody means well with: one cell, row or table at a time, for every command."""

import argparse
import contextlib
import io
import json
import random
import sqlite3
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

from dse.cli import main
from tests.fuzz.seeds import SPACE
from tests.support.cases import cases

#: What a cell is set to: of another type, out of every range, no text, of another shape.
HOSTILE: Final[tuple[Any, ...]] = (
    None, "", "abc", "7", "[1]", "{}", '"x"', "null", "{", '{"a": "b"}', "[[1, null], {}]", "true", "NaN",
    "-Infinity", "9" * 5000, "[" * 5000, "\x1b[31m", "1e999", -1, 0, 7, 0.5, 1e9, 2**62, float("inf"),
    b"\xff\xfe", "SIDEWAYS", "2026-13-45 99:00:00",
)  # fmt: skip
#: What a part of a JSON text is set to.
HOSTILE_PARTS: Final[tuple[Any, ...]] = (
    None, True, "x", "", "9" * 400, [], [1], {}, {"a": 1}, -1, 0, 0.5, 10**30, float("nan"), float("inf"),
)  # fmt: skip
#: Tables and their columns that a command reads or writes.
TABLES: Final = cases(__file__, "TABLES")
#: What tells kinds of rows of a table apart: a row of each is changed.
KINDS: Final = {
    "study_user_attributes": "key", "study_system_attributes": "key", "trial_user_attributes": "key",
    "trial_system_attributes": "key", "trial_params": "param_name", "trial_values": "objective",
    "study_directions": "objective",
}  # fmt: skip

#: Commands that read a study of the name s: {at} is its storage, {out} a folder.
COMMANDS: Final = cases(__file__, "COMMANDS")


def changes(file: Path) -> Iterator[tuple[str, str, tuple[Any, ...]]]:
    """Changes of a database: in words, as a statement, and its parameters."""
    with sqlite3.connect(file) as connection:
        for table, columns in TABLES.items():
            yield f"drop {table}", f"DROP TABLE {table}", ()
            yield f"empty {table}", f"DELETE FROM {table}", ()
            for what, row in rows(connection, table):
                yield f"delete {what}", f"DELETE FROM {table} WHERE rowid = {row}", ()
                for column in columns:
                    update = f'UPDATE {table} SET "{column}" = {{}} WHERE rowid = {row}'
                    for value in HOSTILE:
                        yield f"{what}.{column} = {value!r:.40}", update.format("?"), (value,)
                    yield f"{what}.{column} of no text", update.format("CAST(x'fffe41' AS TEXT)"), ()
    connection.close()


def rows(connection: sqlite3.Connection, table: str) -> Iterator[tuple[str, int]]:
    """A row of each kind of a table: in words, and by its number."""
    kind = KINDS.get(table)
    if kind is None:
        actual = connection.execute(f"SELECT '', rowid FROM {table} ORDER BY rowid LIMIT 2").fetchall()
    else:
        actual = connection.execute(f'SELECT "{kind}", min(rowid) FROM {table} GROUP BY "{kind}" ORDER BY 2').fetchall()
    for name, row in actual:
        yield f"{table}[{name}]", row


def part_changes(file: Path) -> Iterator[tuple[str, str, tuple[Any, ...]]]:
    """The same of the parts of JSON texts."""
    with sqlite3.connect(file) as connection:
        for table in (name for name, columns in TABLES.items() if "value_json" in columns):
            for what, row in rows(connection, table):
                [(text,)] = connection.execute(f"SELECT value_json FROM {table} WHERE rowid = {row}")
                for path, changed in variants(json.loads(text)):
                    update = f"UPDATE {table} SET value_json = ? WHERE rowid = {row}"
                    yield f"{what}{path}", update, (json.dumps(changed),)
    connection.close()


def variants(data: Any, most: int = 3) -> Iterator[tuple[str, Any]]:
    """A value with one part of it changed or gone, of the first parts of each list and mapping."""
    if isinstance(data, dict | list):
        for key in [*data][:most] if isinstance(data, dict) else range(min(most, len(data))):
            rest = {k: v for k, v in data.items() if k != key} if isinstance(data, dict) else data[1:]
            yield f"[{key}] gone", rest
            for path, part in (*((f" = {part!r:.20}", part) for part in HOSTILE_PARTS), *variants(data[key], most)):
                copy = data.copy()
                copy[key] = part
                yield f"[{key}]{path}", copy


def changed(file: Path, original: bytes, statement: str, parameters: tuple[Any, ...]) -> bool:
    """Write a database with one change; whether SQLite lets that be."""
    for ending in ("-wal", "-shm"):
        file.with_name(file.name + ending).unlink(missing_ok=True)
    file.write_bytes(original)
    connection = sqlite3.connect(file)
    try:
        connection.execute(statement, parameters)
        connection.commit()
    except sqlite3.IntegrityError:
        return False
    finally:
        connection.close()
    return True


def without_constraints(file: Path) -> None:
    """Let a database hold NULL everywhere."""
    connection = sqlite3.connect(file)
    connection.execute("PRAGMA writable_schema = ON")
    connection.execute("UPDATE sqlite_master SET sql = replace(sql, ' NOT NULL', '') WHERE type = 'table'")
    connection.commit()
    connection.close()


def judged(words: tuple[str, ...], file: Path, space: Path) -> str:
    """The fault in the end of a command on a database; empty for a result or a line."""
    known = {"out": str(file.parent), "space": str(space)}
    out, err = io.StringIO(), io.StringIO()
    start = time.process_time()
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
        code = main([*(word.format(**known) for word in words), "--storage", f"sqlite:///{file}"])
    seconds = time.process_time() - start
    told = [line for line in err.getvalue().splitlines() if line.startswith("dse: ")]
    if any("internal error" in line for line in told):
        return "\n".join(told)
    if code not in (0, 1) or (code and not told and not out.getvalue()):
        return f"code {code}, and no line that tells why"
    if "\x1b" in out.getvalue() + err.getvalue():
        return "steers the terminal"
    return f"{seconds:.1f} s" if seconds > 5 else ""


def stored(folder: Path) -> tuple[bytes, Path]:
    """A database with a study of the small space, which holds NULL wherever it is told to, and the space."""
    file, space = folder / "dse.db", folder / "small.yaml"
    space.write_text(SPACE)
    with contextlib.redirect_stdout(io.StringIO()), contextlib.redirect_stderr(io.StringIO()):
        for line in (f"search {space} --study s --budget 6", "tune s --tell 0 --step-time 3s"):
            assert main([*line.split(), "--storage", f"sqlite:///{file}"]) == 0
    without_constraints(file)
    return file.read_bytes(), space


def trials(folder: Path, seed: int, share: float) -> Iterator[tuple[str, str, str]]:
    """Some pairs of a change and a command, tried: the change, the command, and what is wrong."""
    original, space = stored(folder)
    file = folder / "dse.db"
    rng = random.Random(seed)
    for what, statement, parameters in [*changes(file), *part_changes(file)]:
        for words in COMMANDS:
            if rng.random() < share and changed(file, original, statement, parameters):
                yield what, " ".join(words), judged(words, file, space)


def survey() -> None:
    """Try many pairs, and say which end wrong: ``python -m tests.fuzz.database``."""
    parser = argparse.ArgumentParser(prog="python -m tests.fuzz.database", description=survey.__doc__)
    parser.add_argument("--share", type=float, default=1.0, help="of all pairs, at random (default: all)")
    parser.add_argument("--seed", type=int, default=1, help="(default: 1)")
    args = parser.parse_args()
    tried = wrong = 0
    with tempfile.TemporaryDirectory() as folder:
        for what, words, ending in trials(Path(folder), args.seed, args.share):
            tried += 1
            if ending:
                wrong += 1
                print(f"{what}: dse {words}: {ending}", flush=True)
    print(f"{tried:,} pairs of a change and a command, {wrong} of them end wrong")


if __name__ == "__main__":
    survey()
