"""The software bill of materials: ``python -m tests.sbom`` writes ``docs/sbom.cdx.json`` (CycloneDX 1.6).

It lists the direct dependencies of the program and of its extras for users, with the versions that `pyproject.toml`
asks for and the licences that the installed packages declare.
"""

import json
import re
import tomllib
from collections.abc import Collection
from importlib.metadata import PackageMetadata, metadata
from typing import Any, Final

from tests.support.paths import ROOT

FILE: Final = ROOT / "docs" / "sbom.cdx.json"
#: Extras of those who work on the project; their packages are not part of what users install.
OF_DEVELOPERS: Final = {"dev", "docs"}
#: Texts and classifiers that packages declare in place of an SPDX expression -> the expression.
LICENCES: Final = (
    ("MPL-2.0 AND MIT", "MPL-2.0 AND MIT"),
    ("BSD", "BSD-3-Clause"),
    ("Apache", "Apache-2.0"),
    ("MIT", "MIT"),
)


def licence(package: PackageMetadata) -> str:
    """The SPDX expression of a package's licence."""
    if package["License-Expression"]:
        return str(package["License-Expression"])
    classifiers = [line for line in package.get_all("Classifier") or [] if line.startswith("License")]
    declared = " ".join([*classifiers, package["License"] or ""])
    return next(expression for word, expression in LICENCES if word in declared)


def requirements(without: Collection[str] = OF_DEVELOPERS) -> dict[str, tuple[str, str]]:
    """Distribution -> versions that the project asks for, and the extra that needs it: "" for none."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    extras = {name: lines for name, lines in project["optional-dependencies"].items() if name not in without}
    lines = [(line, extra) for extra, asked in {"": project["dependencies"], **extras}.items() for line in asked]
    lines = [(line, extra) for line, extra in lines if not line.startswith(f"{project['name']}[")]
    parsed = [(re.fullmatch(r"([\w.-]+)(?:\[\w+\])?(.*)", line), extra) for line, extra in lines]
    return {match[1]: (match[2], extra) for match, extra in parsed if match}


def bill() -> dict[str, Any]:
    """The bill of materials as CycloneDX JSON."""
    return {
        "bomFormat": "CycloneDX",
        "specVersion": "1.6",
        "version": 1,
        "metadata": {
            "component": {"type": "application", "name": "dse-training", "licenses": [{"expression": "Apache-2.0"}]}
        },
        "components": [
            {
                "type": "library",
                "name": name,
                "purl": f"pkg:pypi/{name.lower()}",
                "scope": "optional" if extra else "required",
                "licenses": [{"expression": licence(metadata(name))}],
                "properties": [
                    {"name": "dse:versions", "value": versions},
                    *([{"name": "dse:extra", "value": extra}] if extra else []),
                ],
            }
            for name, (versions, extra) in sorted(requirements().items())
        ],
    }


def text() -> str:
    """The file."""
    return json.dumps(bill(), indent=1) + "\n"


if __name__ == "__main__":
    FILE.write_text(text(), encoding="utf-8")
