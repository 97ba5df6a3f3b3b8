"""A coverage-guided run over one reader: ``python -m tests.fuzz READER --runs N``; needs atheris.

Inputs grow from files that the reader reads. One that is neither read nor refused in a line, or takes longer
than it may, is kept in the folder of findings, once for each place in the program where it ends.
"""

import argparse
import hashlib
import resource
import sys
import tempfile
import time
import traceback
from dataclasses import dataclass, field
from pathlib import Path
from types import SimpleNamespace
from typing import Final

import atheris

with atheris.instrument_imports(include=["costmodel", "dse"]):
    import costmodel.errors
    from tests.fuzz.seeds import CORPUS, words
    from tests.fuzz.targets import TARGETS, Target

#: What one input may take of the processor before it is a finding, and before the run is stopped. [s]
SLOW, STOPPED = 1.0, 30
#: Inputs between two lines on how it goes.
REPORTED: Final = 10_000
#: Memory of the whole process. [B]
MEMORY: Final = 6 << 30

# The search for similar names takes longer than most readers; messages get the first names here.
vars(costmodel.errors)["difflib"] = SimpleNamespace(get_close_matches=lambda word, known, **_: [*known][:1])


@dataclass
class Findings:
    """Results of a target on inputs; inputs that it fails on are kept."""

    target: Target
    folder: Path  #: where findings go
    scratch: Path
    known: set[str] = field(default_factory=set)
    read: int = 0
    inputs: int = 0

    def __call__(self, data: bytes) -> None:
        """One input."""
        self.inputs += 1
        if self.inputs % REPORTED == 0:
            print(f"{self.inputs:,} inputs, {self.read:,} of them read, {len(self.known)} findings", flush=True)
        start = time.process_time()
        try:
            self.read += not self.target(data, self.scratch)
        except Exception as error:
            last = traceback.extract_tb(error.__traceback__)
            frames = [frame for frame in last if "/costmodel/" in frame.filename or "/dse/" in frame.filename]
            self.keep(data, f"{type(error).__name__}: {error}"[:200], f"{frames[-1].filename}:{frames[-1].lineno}")
        if time.process_time() - start > SLOW:
            self.keep(data, f"{time.process_time() - start:.1f} s", f"slow {len(data) // 200}")

    def keep(self, data: bytes, what: str, where: str) -> None:
        """Keep an input, the first of its place."""
        if (crash := f"{what.split(':')[0]} {where}") in self.known:
            return
        self.known.add(crash)
        path = self.folder / hashlib.sha256(data).hexdigest()[:12]
        path.write_bytes(data)
        print(f"FINDING {path}: {len(data)} B: {what} at {where}", flush=True)


def main() -> None:
    """Run until the inputs are used up."""
    parser = argparse.ArgumentParser(prog="python -m tests.fuzz", description=__doc__)
    parser.add_argument("reader", choices=TARGETS)
    parser.add_argument("--runs", type=int, default=100_000, help="inputs to try (default: 100000)")
    parser.add_argument("--seconds", type=int, default=0, help="stop after so long (default: never)")
    parser.add_argument("--largest", type=int, default=4096, help="bytes of an input, or a seed (default: 4096)")
    parser.add_argument("--findings", type=Path, default=Path("findings"), help="(default: findings)")
    parser.add_argument("--corpus", type=Path, help="folder that keeps inputs which reach new code (default: none)")
    parser.add_argument("--seed", type=int, default=1, help="(default: 1)")
    args = parser.parse_args()
    resource.setrlimit(resource.RLIMIT_AS, (MEMORY, MEMORY))
    target, folder = TARGETS[args.reader], args.findings / args.reader
    folder.mkdir(parents=True, exist_ok=True)
    scratch = Path(tempfile.mkdtemp(prefix="fuzz-", dir="/dev/shm" if Path("/dev/shm").is_dir() else None))
    grown, dictionary = args.corpus / args.reader if args.corpus else scratch / "corpus", scratch / "words"
    grown.mkdir(parents=True, exist_ok=True)
    seeds = [*target.seeds(), *(path.read_bytes() for path in sorted((CORPUS / args.reader).glob("*")))]
    for index, data in enumerate(seeds):
        (grown / str(index)).write_bytes(data)
    dictionary.write_text("".join(f'"{quoted(word)}"\n' for word in words(target.seeds())))
    findings = Findings(target, folder, scratch)
    options = {
        "runs": args.runs, "max_total_time": args.seconds, "max_len": max(args.largest, *map(len, seeds)),
        "timeout": STOPPED, "rss_limit_mb": MEMORY >> 20, "artifact_prefix": f"{folder}/stopped-",
        "seed": args.seed, "verbosity": 0, "print_final_stats": 1, "dict": dictionary, "len_control": 20,
    }  # fmt: skip
    atheris.Setup([sys.argv[0], *(f"-{name}={value}" for name, value in options.items()), str(grown)], findings)
    atheris.Fuzz()


def quoted(word: str) -> str:
    """A word as a dictionary of libFuzzer has it."""
    return "".join(chr(c) if 32 <= c < 127 and chr(c) not in '"\\' else f"\\x{c:02x}" for c in word.encode())


main()
