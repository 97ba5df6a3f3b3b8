"""`dse studies`: list the studies of a database; check, delete or browse them.

`--check` evaluates stored trials again and lists the figures that differ. `--dashboard` serves Optuna's dashboard to a
browser on this machine, read-only unless changes are allowed; the address holds a random token.
"""

from __future__ import annotations

import argparse
import secrets
import sys
from contextlib import suppress
from dataclasses import asdict
from socket import SHUT_RD, SHUT_RDWR, socket
from socketserver import ThreadingMixIn
from time import monotonic
from typing import Any
from wsgiref.simple_server import WSGIRequestHandler, WSGIServer, make_server

from costmodel.errors import DseError, printable
from costmodel.formats.quantity import readable
from dse.api.study import SAMPLE, Study
from dse.cli.output import write_answer, write_content
from dse.output import show
from dse.pricing.workers import Workers
from dse.reporting.studies.check_report import CheckedStudy, check_json, check_report
from dse.reporting.study_report import studies_table
from dse.searching.study import studies
from dse.searching.study_attributes import SPACE_NAME
from dse.storage.dashboard import TOKEN, dashboard, private
from dse.storage.database import back_up, restore, shown, storage_url
from dse.storage.optuna_store import Store, count_trials, delete_study


def run(args: argparse.Namespace) -> int:
    """List, back up, restore, check, delete or serve studies."""
    if args.check:
        return check(args)
    if args.delete:
        return delete(args)
    url = storage_url(args.storage)
    if args.backup:
        print(f"{args.backup}: {readable(back_up(url, args.backup), 'B')}")
    elif args.restore:
        old = restore(url, args.restore)
        print(f"{shown(url)}: restored from {args.restore}" + (f"; the database before is {old}" if old else ""))
    elif args.dashboard:
        serve(args)
    else:
        if args.study:
            Study.load(args.study, storage=args.storage)
        summaries = studies(args.storage, args.study)
        record = {"studies": [asdict(summary) for summary in summaries]}
        write_answer(args.format, record, lambda width: studies_table(summaries))
    return 0


def check(args: argparse.Namespace) -> int:
    """Evaluate trials again; 1 where a stored value differs."""
    study = Study.load(args.study, storage=args.storage)
    workers = Workers(args.jobs, args.backend, args.scheduler)
    checked = CheckedStudy(study, study.differing(workers, most=None if args.all else SAMPLE))
    if args.format == "json":
        write_content(check_json(checked), "json", None)
    else:
        show(sys.stdout, lambda _: check_report(checked))
    return 1 if checked.differing else 0


def delete(args: argparse.Namespace) -> int:
    """Delete the study; 1 where the answer is no."""
    with Store(storage_url(args.storage), "read") as store:
        study_id = store.study_id(args.study)
        of = of_space(store, study_id)
        what = f"study {args.study!r}: {count_trials(store, study_id):,} trials{of}, in {store.where}"
    if not args.yes:
        if not (sys.stdin and sys.stdin.isatty()):  # None if it is closed
            raise DseError(f"{what}: not deleted; add --yes to delete it without a question")
        print(f"Delete {what}? [y/N] ", end="", file=sys.stderr, flush=True)
        if sys.stdin.readline().strip().lower() not in ("y", "yes"):
            print("dse: nothing was deleted", file=sys.stderr)
            return 1
    with Store(storage_url(args.storage), "write") as store:
        trials = delete_study(store, store.study_id(args.study))
    print(f"deleted study {args.study!r}: {trials:,} trials{of}")
    return 0


def of_space(store: Store, study_id: int) -> str:
    """`` of space NAME``, or nothing where the study is damaged."""
    try:
        space = store.user_attr(study_id, SPACE_NAME)
    except DseError:  # a damaged study can be deleted, too
        return ""
    return f" of space {printable(space)}" if isinstance(space, str) else ""


def serve(args: argparse.Namespace) -> None:
    """Serve a database to a browser."""
    token = secrets.token_urlsafe(16)
    application = private(dashboard(storage_url(args.storage)), token, changes=args.allow_changes)
    try:
        server = make_server("127.0.0.1", args.port, application, server_class=Server, handler_class=Quiet)
    except OSError as error:
        raise DseError(f"--port {args.port}: {error.strerror}; choose another port") from None
    with server:
        note = "" if args.allow_changes else "read-only; "
        url = f"http://127.0.0.1:{server.server_port}/?{TOKEN}={token}"
        print(f"{url} ({note}Ctrl-C stops it)", file=sys.stderr, flush=True)
        server.serve_forever()


#: Connections of the dashboard at once, and time to send a request and to take its answer. [-], [s], [s]
MOST, SENDING, TAKING = 64, 10.0, 600.0


class Server(ThreadingMixIn, WSGIServer):
    """A server with a thread for each connection, which ends connections that send nothing, or take no answer."""

    daemon_threads = True

    def __init__(self, *args: Any) -> None:
        self.since: dict[socket, float] = {}  #: connection -> when it began [s]
        super().__init__(*args)

    def service_actions(self) -> None:
        """Read no more from connections that are slow; end old ones. The base class calls this twice a second."""
        for connection, since in [*self.since.items()]:
            if (age := monotonic() - since) > SENDING:
                with suppress(OSError):
                    connection.shutdown(SHUT_RDWR if age > TAKING else SHUT_RD)

    def process_request(self, request: Any, client_address: Any) -> None:
        """Answer in a thread, unless there are too many."""
        if len(self.since) >= MOST:
            self.shutdown_request(request)
            return
        self.since[request] = monotonic()
        super().process_request(request, client_address)

    def shutdown_request(self, request: Any) -> None:
        """Forget a connection that ends."""
        self.since.pop(request, None)
        super().shutdown_request(request)

    def handle_error(self, request: Any, client_address: Any) -> None:
        """Say nothing of connections that their browser ends."""
        if not isinstance(sys.exception(), OSError):
            super().handle_error(request, client_address)


class Quiet(WSGIRequestHandler):
    """A handler that prints no line for each request."""

    def log_message(self, format: str, *args: Any) -> None:
        """Keep requests out of the terminal."""
