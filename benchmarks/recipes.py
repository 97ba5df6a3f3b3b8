"""Published launch files below a folder, such as a checkout of Primus or of Megatron-LM: how many fit on a system.

    python -m benchmarks.recipes Primus/examples/megatron/configs/MI300X --system mi300x --gpus 8

Whoever publishes a launch file has run it. A design that dse says does not fit is a wrong answer then, unless the run
took more GPUs than `--gpus`.
"""

import argparse
from collections import Counter
from pathlib import Path

import dse
from costmodel import DseError
from dse.api.design_files import launch_form
from dse.reporting.answers import room_text


def main() -> None:
    """Evaluate all launch files below a folder, and count those that fit."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--system", required=True)
    parser.add_argument("--gpus", type=int)
    args = parser.parse_args()
    counts: Counter[str] = Counter()
    for path in sorted(path for path in args.folder.rglob("*") if path.is_file()):
        try:
            if not launch_form(str(path)):
                continue
            space = dse.launch_design(path, system=args.system, gpus=args.gpus)
            record = dse.evaluate_design(space)
        except DseError as error:
            counts["refused"] += 1
            print(f"{path.relative_to(args.folder)}: refused: {str(error).removeprefix(f'{path}: ')}")
            continue
        counts["fits" if record["feasible"] else "does not fit"] += 1
        if not record["feasible"]:
            print(f"{path.relative_to(args.folder)}: does not fit: {room_text(space, record)}")
    print(", ".join(f"{name} {count}" for name, count in counts.most_common()))


if __name__ == "__main__":
    main()
