"""Pictures of graphs."""

from __future__ import annotations

import shutil
import subprocess

from costmodel.errors import DseError


def svg(dot: str) -> bytes:
    """DOT text drawn by Graphviz.

    Raises
    ------
    DseError
        If Graphviz is not installed, or refuses the text.
    """
    program = shutil.which("dot")
    if program is None:
        raise DseError(
            "svg: needs Graphviz, whose `dot` is not on PATH; install graphviz, or take --format dot, "
            "which needs nothing"
        )
    drawn = subprocess.run([program, "-Tsvg"], input=dot.encode(), capture_output=True, check=False)
    if drawn.returncode:
        raise DseError(f"svg: {program}: {drawn.stderr.decode(errors='replace').strip()}")
    return drawn.stdout
