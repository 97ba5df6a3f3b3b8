"""Files of 1 MB in which one piece comes again and again: ``python -m tests.fuzz.large READER``.

Each is read in a process of its own, of 5 s of computing and 1 GB of memory: a reader that takes a time that
grows with the square of its input does not end in it.
"""

import argparse
import os
import random
import re
import resource
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Final

from tests.fuzz.targets import TARGETS, Target

#: What a file may take, and how large it is. [s], [B], [B]
SECONDS, MEMORY, SIZE = 5, 1 << 30, 1 << 20
#: Longest file of which a piece is taken. [B]
LONGEST: Final = 20_000


def repeated(target: Target, count: int, seed: int) -> Iterator[tuple[str, bytes]]:
    """Files that a reader reads with a piece of one repeated up to 1 MB, and what that piece is."""
    rng, files = random.Random(seed), [file[:LONGEST] for file in target.seeds()]
    for _ in range(count):
        file = rng.choice(files)
        pieces = [actual.span() for actual in re.finditer(rb"\w+|\s|[^\w\s]|[^\n]*\n", file)]
        index = rng.randrange(len(pieces))
        last = min(index + rng.choice((1, 1, 2, 5)), len(pieces)) - 1
        start, end = pieces[index][0], pieces[last][1]
        piece = file[start:end]
        yield f"{piece!r:.60} at byte {start}", file[:end] + piece * (SIZE // len(piece)) + file[end:]


def ending(target: Target, data: bytes, folder: Path) -> str:
    """The end of a reader on a file in a separate process; empty if it reads or refuses the file in time."""
    begin, end = os.pipe()
    child = os.fork()
    if not child:
        os.close(begin)
        used = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
        resource.setrlimit(resource.RLIMIT_AS, (used + MEMORY, used + MEMORY))
        resource.setrlimit(resource.RLIMIT_CPU, (SECONDS, SECONDS))
        try:
            target(data, folder)
            told = ""
        except BaseException as error:
            told = f"{type(error).__name__}: {error}"
        os.write(end, told.encode()[:1000] or b"\n")
        os._exit(0)
    os.close(end)
    with os.fdopen(begin, "rb") as pipe:
        told = pipe.read().decode(errors="replace")
    os.waitpid(child, 0)
    return told.strip() if told else f"more than {SECONDS} s or {MEMORY >> 20} MiB"


def main() -> None:
    """Try some files, and say which end wrong."""
    parser = argparse.ArgumentParser(prog="python -m tests.fuzz.large", description=main.__doc__)
    parser.add_argument("reader", choices=TARGETS, nargs="*", help="(default: all)")
    parser.add_argument("--count", type=int, default=50, help="files for each reader (default: 50)")
    parser.add_argument("--seed", type=int, default=1, help="(default: 1)")
    args = parser.parse_args()
    for name in args.reader or TARGETS:
        start, wrong = time.monotonic(), 0
        with tempfile.TemporaryDirectory() as folder:
            for what, data in repeated(TARGETS[name], args.count, args.seed):
                told = ending(TARGETS[name], data, Path(folder))
                wrong += bool(told)
                if told:
                    print(f"{name}: {what}: {told}", flush=True)
        seconds = time.monotonic() - start
        print(f"{name}: {args.count} files of 1 MB in {seconds:.0f} s, {wrong} of them end wrong", flush=True)


if __name__ == "__main__":
    main()
