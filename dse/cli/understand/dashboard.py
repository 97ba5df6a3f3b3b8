"""`dse dashboard`: studies in Optuna's dashboard."""

from __future__ import annotations

import argparse
import sys
from typing import Any
from wsgiref.simple_server import WSGIRequestHandler, make_server

from dse.cli.options import Commands, add_storage, command, natural


def register(commands: Commands[argparse.ArgumentParser]) -> None:
    """Add the command."""
    parser = command(
        commands,
        "dashboard",
        run,
        summary="look at studies in Optuna's dashboard",
        about="Serve optuna-dashboard to a browser of this machine, until Ctrl-C: studies as they grow,\n"
        "their feasible front alone, and every number of a breakdown as a column that can be sorted.\n"
        "Needs it: pip install 'dse-training[dashboard]'.",
        examples=["dse dashboard", "dse dashboard --port 8000 --storage postgresql://me@host/dse"],
    )
    parser.add_argument(
        "--port", metavar="N", type=natural, default=8080, help="default: 8080; 0: any free one"
    )
    add_storage(parser)


def run(args: argparse.Namespace) -> int:
    """Serve."""
    from costmodel.errors import DseError
    from dse.storage.dashboard import dashboard
    from dse.storage.database import storage_url

    application = dashboard(storage_url(args.storage))
    try:
        server = make_server("127.0.0.1", args.port, application, handler_class=Quiet)
    except OSError as error:
        raise DseError(f"--port {args.port}: {error.strerror}; name another") from None
    with server:
        print(f"http://127.0.0.1:{server.server_port}/ (Ctrl-C ends)", file=sys.stderr, flush=True)
        server.serve_forever()
    return 0


class Quiet(WSGIRequestHandler):
    """A handler that prints no line for each request."""

    def log_message(self, format: str, *args: Any) -> None:
        """Say nothing."""
