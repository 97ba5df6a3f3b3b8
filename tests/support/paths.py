"""Folders that tests read."""

from pathlib import Path
from typing import Final

#: The root of the project, and data of the tests.
ROOT: Final = Path(__file__).parents[2]
TEST_DATA: Final = ROOT / "tests" / "data"
