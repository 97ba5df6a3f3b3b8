"""The version of the installed distribution, and the command that adds its extras."""

from __future__ import annotations

from typing import Final

#: Name of the project on package indexes.
DISTRIBUTION: Final = "dse-training"
__version__ = "0.1.0"


def installation(extra: str) -> str:
    """The command that adds an extra of pyproject.toml to this installation, wherever it came from.

    >>> installation("report").endswith("[report]'")
    True
    """
    import json
    from importlib.metadata import PackageNotFoundError, distribution
    from shlex import quote
    from urllib.parse import urlsplit
    from urllib.request import url2pathname

    try:
        origin = json.loads(distribution(DISTRIBUTION).read_text("direct_url.json") or "{}")
    except PackageNotFoundError:
        origin = {}
    if "dir_info" not in origin:
        return f"pip install {quote(f'{DISTRIBUTION}[{extra}]')}"
    editable, folder = origin["dir_info"].get("editable"), url2pathname(urlsplit(origin["url"]).path)
    return f"pip install {'-e ' if editable else ''}{quote(f'{folder}[{extra}]')}"
