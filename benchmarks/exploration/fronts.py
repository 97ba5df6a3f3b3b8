"""Certified Pareto fronts of the spaces: a JSON file each, with how the front was proved."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from time import process_time
from typing import Final

import numpy as np

from benchmarks.exploration.problem import Problem, profile_of, space_of
from costmodel.columns import FloatArray
from dse.fronts import Box
from dse.pricing.evaluated import rules_for
from dse.searching.exact.exact_front import exact_front

FOLDER: Final = Path(__file__).with_name("fronts")
#: Characters of option numbers in a file, one for each parameter of a design.
DIGITS: Final = "0123456789abcdefghijklmnopqrstuvwxyz"


@dataclass(frozen=True)
class Front:
    """The exact front of a space."""

    costs: FloatArray  #: distinct costs of its designs, less is better; (points, objectives)
    proof: str  #: "list": every legal design was evaluated; "bounds": bounds rule out those that were not
    legal: float  #: legal designs [-]

    @property
    def box(self) -> Box:
        """Box in which hypervolume is measured: up to a tenth beyond the worst values of the front."""
        around = Box.around(self.costs)
        return Box(around.ideal, around.ideal + 1.1 * (around.reference - around.ideal))

    @property
    def figures(self) -> list[float]:
        """Least cost by each objective, and the hypervolume. [the unit of each], [-]"""
        return [*self.costs.min(axis=0).tolist(), float(self.box.hypervolume(self.costs))]


def certify(name: str) -> Front:
    """Compute the front of a space and write its file: every legal design evaluated or ruled out by a bound."""
    space, start = space_of(name), process_time()
    exact = exact_front(space, rules=rules_for(space, profile_of(name)))
    costs, first = np.unique(exact.costs, axis=0, return_index=True)
    front = Front(costs, "list" if exact.tally else "bounds", exact.legal)
    places = Problem(name, 0).lattice.places({key: values[first] for key, values in exact.designs.items()})
    record = {
        "space": name,
        "proof": front.proof,
        "legal": exact.legal,
        "evaluated": exact.evaluated,
        "cpu_seconds": round(process_time() - start, 1),
        "objectives": [objective.key for objective in space.objectives],
        "least_costs_and_hypervolume": front.figures,
        "parameters": [parameter.name for parameter in space.parameters],
        "designs": ["".join(DIGITS[int(place)] for place in row) for row in places],
    }
    lines = [f" {json.dumps(key)}: {json.dumps(value)}" for key, value in record.items()]
    FOLDER.mkdir(exist_ok=True)
    (FOLDER / f"{name}.json").write_text("{\n" + ",\n".join(lines) + "\n}\n")
    return front


def load(name: str) -> Front:
    """The stored front of a space: its designs, evaluated again.

    Raises `ValueError` if today's cost model gives them other costs: `certify` makes the front anew.
    """
    path = FOLDER / f"{name}.json"
    if not path.exists():
        raise ValueError(f"{name}: no certified front; run with --certify {name}")
    record = json.loads(path.read_text())
    rows = np.array([[DIGITS.index(digit) for digit in row] for row in record["designs"]])
    problem = Problem(name, len(rows))
    if record["parameters"] == problem.names:
        costs, violations = problem.evaluate(rows)
        front = Front(costs, record["proof"], record["legal"])
        if not violations.any() and np.allclose(front.figures, record["least_costs_and_hypervolume"], rtol=1e-9):
            return front
    raise ValueError(f"{name}: the cost model has changed since its front was certified; run --certify {name}")
