"""Digests that tell two programs, or two cost models, apart: results are put together only where they are equal."""

from __future__ import annotations

import hashlib
from functools import cache
from importlib import resources
from typing import TYPE_CHECKING, Final

import numpy as np

from costmodel.columns import layout_of
from costmodel.installation import __version__
from dse.pricing.evaluated import machine

if TYPE_CHECKING:
    from costmodel.rules.rules import WorkloadRules
    from dse.spaces.space import Space

#: Designs of a space whose results are compared.
DESIGNS: Final = 64
#: Characters of a digest.
SHOWN: Final = 16


@cache
def program_digest() -> str:
    """Versions of dse and NumPy, and a digest of the code and tables of both packages of dse."""
    digest = hashlib.sha256()
    for package in ("costmodel", "dse"):
        with resources.as_file(resources.files(package)) as root:
            for path in sorted([*root.rglob("*.py"), *root.rglob("*.yaml")]):
                digest.update(path.relative_to(root).as_posix().encode() + b"\0" + path.read_bytes() + b"\0")
    return f"dse {__version__}, NumPy {np.__version__}, {digest.hexdigest()[:SHOWN]}"


def results_digest(space: Space, rules: WorkloadRules) -> str:
    """Digest of the breakdowns of a fixed set of designs of each workload, to the bit."""
    digest = hashlib.sha256()
    for part in [workload.space for workload in space.workloads] or [space]:
        known = part.known_values(part.legal.random(DESIGNS, np.random.default_rng(0)))
        breakdown = rules.step(machine(part, known), known)
        for name in layout_of(type(breakdown)).units:
            digest.update(np.ascontiguousarray(getattr(breakdown, name)).tobytes())
    return digest.hexdigest()[:SHOWN]
