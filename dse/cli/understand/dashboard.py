"""`dse dashboard`: studies in Optuna's dashboard."""

from __future__ import annotations

import argparse
import sys
from typing import Any
from wsgiref.simple_server import WSGIRequestHandler, make_server

from costmodel.errors import DseError
from dse.storage.dashboard import dashboard
from dse.storage.database import storage_url


def run(args: argparse.Namespace) -> int:
    """Serve a database to a browser."""
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
        """Keep requests out of the terminal."""
