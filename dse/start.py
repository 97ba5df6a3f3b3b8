"""Where the `dse` command begins: Ctrl-C while it is still being imported is no traceback either."""

from __future__ import annotations

import sys


def main() -> int:
    """Run the command line; its exit code is `dse.cli.main`'s."""
    try:
        from dse.cli import main as command

        return command()
    except KeyboardInterrupt:
        print("dse: interrupted", file=sys.stderr)
        return 130
