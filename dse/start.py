"""Where the `dse` command begins and ends: Ctrl-C while Python is at its own work is not a traceback either."""

from __future__ import annotations

import gc
import sys

#: Objects between two collections of garbage: commands make many records at their start, and none of them is garbage.
COLLECT_AFTER = 50_000


def main() -> int:
    """Run the command line; its exit code is `dse.cli.main`'s."""
    gc.set_threshold(COLLECT_AFTER)
    try:
        from dse.cli import main as command

        return command()
    except KeyboardInterrupt:
        print("dse: interrupted", file=sys.stderr)
        return 130
    finally:
        import signal  # here: until the block above has begun, Ctrl-C is a traceback of Python's own

        if signal.getsignal(signal.SIGINT) is signal.default_int_handler:
            signal.signal(signal.SIGINT, signal.SIG_DFL)  # nothing is left to do: end, and say nothing
