"""Tables of test modules: for tests/FOLDER/test_x.py they stand in tests/data/cases/FOLDER/test_x.yaml."""

from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.support.paths import ROOT, TEST_DATA


def cases(module: str, name: str) -> Any:
    """A table of a test module, which passes its `__file__`."""
    return _tables(Path(module).relative_to(ROOT / "tests").with_suffix(".yaml"))[name]


def by_table(*arguments: str) -> Callable[[Callable[..., None]], Any]:
    """Runs a test once for each row of the table with the name of the test; `arguments` are names of its columns."""

    def decorated(test: Callable[..., None]) -> Any:
        rows = cases(test.__code__.co_filename, test.__name__.removeprefix("test_"))
        return pytest.mark.parametrize(arguments, rows)(test)

    return decorated


@cache
def _tables(path: Path) -> Any:
    """All tables of a module, by name."""
    return yaml.load((TEST_DATA / "cases" / path).read_text(), yaml.CSafeLoader)
