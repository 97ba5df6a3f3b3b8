"""Random spaces whose trials are stored, printed, read back and evaluated: every step keeps values and figures."""

import csv
import random
from pathlib import Path
from typing import Any, Final

from costmodel.formats.input_files import dump
from dse.cli import main
from tests.support.cases import cases

#: Parameter -> options from which spaces are drawn: numbers, switches and words, some equal to Python (0 and False).
OPTIONS: Final[dict[str, list[Any]]] = cases(__file__, "OPTIONS")
#: Parameters that every space has.
ALWAYS: Final = ("tp", "pp", "micro_batch_size")


def random_space(rng: random.Random) -> dict[str, Any]:
    """A space of some parameters, each with some of its options in any order."""
    names = [*ALWAYS, *rng.sample([name for name in OPTIONS if name not in ALWAYS], rng.randint(2, 7))]
    return {
        "schema": "search_space/v1",
        "description": "random",
        "model": "llama3_8b",
        "system": "h100_80g_dgx",
        "given": {"world_size": 64, "global_batch_size": 256},
        "parameters": {
            name: rng.sample(OPTIONS[name], rng.randint(2, len(OPTIONS[name])))
            for name in rng.sample(names, len(names))
        },
        "derived": {
            "dp": "world_size / (tp * pp)",
            "gradient_accumulation_steps": "global_batch_size / (dp * micro_batch_size)",
        },
        "constraints": {"fits_in_memory": "peak_memory <= dram_capacity"},
        "objectives": {"minimize": ["step_time", "peak_memory"]},
    }


def check_round_trip(seed: int) -> None:
    """Store a study of a random space, print its trials, read them back, and evaluate them, in the current folder."""
    rng = random.Random(seed)
    space, sampler = random_space(rng), rng.choice(["random", "nsga2", "screening"])
    Path("space.yaml").write_text(dump(space), encoding="utf-8")
    assert main(f"search space.yaml --study s{seed} --budget 12 --sampler {sampler}".split()) == 0
    assert main(f"show s{seed} --trials -o trials.csv".split()) == 0
    assert main(["evaluate", "space.yaml", "--designs", "trials.csv", "-o", "again.csv"]) == 0
    assert main(f"studies s{seed} --check --all".split()) == 0
    before, after = (
        [*csv.DictReader(Path(name).read_text(encoding="utf-8").splitlines())] for name in ("trials.csv", "again.csv")
    )
    assert len(before) == len(after) > 0
    for one, other in zip(before, after, strict=True):
        for name, options in space["parameters"].items():
            assert one[name].lower() in {str(option).lower() for option in options}
        for name in ("step_time_s", "peak_memory_bytes", *space["parameters"]):
            assert one[name] == other[name], name
