"""A step of ours beside that of ASTRA-sim: ``python benchmarks/astra_sim.py --binary PATH [SPACE ...]``.

PATH is ASTRA-sim's analytical back end, `AstraSim_Analytical_Congestion_Unaware`. Designs, or the one that
each space completes, are written as ``dse export --format astra-sim`` writes them, and run. Printed are the
step of the cost model, that of ASTRA-sim on the network at the rates that the step reaches (`network.yml`),
and at those of large messages (`links.yml`), and how many ranks finished.
"""

from __future__ import annotations

import argparse
import re
import subprocess
import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path

from costmodel import DesignPoints, ModelShape, load_model, load_system
from costmodel.errors import DseError
from costmodel.training.run import Run, TransformerRun
from dse.adapters.astra_sim.export import astra_sim_files
from dse.output import Artefact
from dse.pricing.evaluation import transformer_run
from dse.spaces.space import Space

#: What is run unless spaces are named: model, system, layout.
DESIGNS = (
    ("llama3_8b", "h100_80g_dgx", {"tp": 8, "gradient_accumulation_steps": 8, "sequence_parallel": True}),
    ("llama3_8b", "h100_80g_dgx", {"pp": 8, "gradient_accumulation_steps": 32}),
    (
        *("llama3_70b", "h100_80g_dgx"),
        {"tp": 4, "pp": 4, "dp": 4, "gradient_accumulation_steps": 16, "sequence_parallel": True},
    ),
)
#: Networks of a folder.
NETWORKS = ("network.yml", "links.yml")


def astra_sim_step(binary: str, folder: Path, network: str) -> tuple[float, int]:
    """The step of ASTRA-sim [s] and the number of ranks that finished it."""
    done = subprocess.run(
        [
            *(binary, "--workload-configuration=step", "--comm-group-configuration=groups.json"),
            *("--system-configuration=system.json", f"--network-configuration={network}"),
            "--remote-memory-configuration=memory.json",
        ],
        cwd=folder,
        capture_output=True,
        text=True,
        check=True,
    )
    cycles = [int(own) for own in re.findall(r"sys\[\d+\] finished, (\d+) cycles", done.stdout)]
    return max(cycles, default=0) * 1e-9, len(cycles)


def compared(binary: str, file: Artefact) -> str:
    """A line: our step, and those of ASTRA-sim with how they differ."""
    if not isinstance(file.content, dict):
        raise DseError(file.notes[0])
    own = int(re.findall(r"is (\d+) cycles", file.content["README.md"].decode())[0]) * 1e-9
    ranks, words = sum(name.endswith(".et") for name in file.content), [f"{own:10.4f} s"]
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        for entry, content in file.content.items():
            (folder / entry).write_bytes(content)
        for network in NETWORKS:
            step, finished = astra_sim_step(binary, folder, network)
            words.append(f"{step:10.4f} s {100 * (step / own - 1):+7.2f} %")
    return "  ".join([*words, f"{finished} of {ranks} ranks"])


def runs(spaces: Sequence[str]) -> Iterator[tuple[str, TransformerRun]]:
    """Designs and what they are called."""
    for name in spaces:
        space = Space.load(name)
        yield name, transformer_run(space, space.encode([space.completed({})]), DesignPoints)
    for model, system, layout in () if spaces else DESIGNS:
        sizes = " ".join(f"{name}={size}" for name, size in layout.items() if size is not True)
        loaded = load_model(model)
        assert isinstance(loaded, ModelShape)
        design = DesignPoints.of(blocks=loaded.blocks, **layout)
        yield f"{model} {sizes}", Run(loaded, load_system(system), design)


def main() -> None:
    """Print a line for each design."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("spaces", nargs="*", metavar="SPACE", help="spaces whose first design is run")
    parser.add_argument("--binary", required=True, help="AstraSim_Analytical_Congestion_Unaware")
    args = parser.parse_args()
    print("dse  ASTRA-sim on network.yml  on links.yml")
    for name, run in runs(args.spaces):
        print(f"{name}\n    {compared(args.binary, next(astra_sim_files(run)))}", flush=True)


if __name__ == "__main__":
    main()
