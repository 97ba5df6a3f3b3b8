"""Sources of the formulas: the keys that docstrings cite, spelled out in `references.yaml`."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import yaml

REFERENCES: Mapping[str, str] = yaml.safe_load(Path(__file__).with_suffix(".yaml").read_text())
