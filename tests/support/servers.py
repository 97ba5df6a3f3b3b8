"""A PostgreSQL server of one's own, where its programs are installed, and a wire to it that can be cut."""

import importlib.util
import os
import shutil
import socket
import subprocess
import tempfile
import threading
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

import pytest


@dataclass(frozen=True)
class Server:
    """A temporary server, which can be stopped and started again."""

    programs: Path
    folder: Path
    port: int

    @property
    def url(self) -> str:
        return f"postgresql://dse@127.0.0.1:{self.port}/postgres"

    def call(self, program, *arguments):
        as_user = []
        if os.geteuid() == 0:  # PostgreSQL refuses to run as root
            as_user = ["setpriv", "--reuid=postgres", "--regid=postgres", "--clear-groups"]
        command = [*as_user, self.programs / program, "-D", self.folder / "data", *arguments]
        subprocess.run(command, check=True, stdout=subprocess.DEVNULL, cwd=self.folder)

    def start(self):
        options = f"-p {self.port} -k {self.folder} -c listen_addresses=127.0.0.1 -c fsync=off"
        self.call("pg_ctl", "-o", options, "-l", self.folder / "log", "-w", "start")

    def stop(self):
        """At once, as if the machine had lost its power."""
        self.call("pg_ctl", "-m", "immediate", "-w", "stop")


@contextmanager
def temporary_server():
    """A server that runs; skips the test without server programs, or a driver."""
    actual = shutil.which("initdb") or next(map(str, Path("/usr/lib/postgresql").glob("*/bin/initdb")), None)
    if actual is None or importlib.util.find_spec("psycopg") is None:
        pytest.skip("needs psycopg and the PostgreSQL server programs")
    folder = Path(tempfile.mkdtemp(prefix="dse"))
    if os.geteuid() == 0:
        shutil.chown(folder, "postgres")
    server = Server(Path(actual).parent, folder, 20000 + os.getpid() % 20000)
    server.call("initdb", "-U", "dse", "--auth=trust", "-E", "UTF8")
    server.start()
    try:
        yield server
    finally:
        server.stop()
        shutil.rmtree(folder)


@contextmanager
def postgresql_server():
    """URL of a temporary server's database."""
    with temporary_server() as server:
        yield server.url


class Wire:
    """A way to a server of this machine, over a port of its own.

    Parameters
    ----------
    server : Server
        Where it leads.
    """

    def __init__(self, server: Server) -> None:
        self._door = socket.create_server(("127.0.0.1", 0))
        self._to = server.port
        self.url = server.url.replace(f":{server.port}/", f":{self._door.getsockname()[1]}/")
        self.cut_at = b""  #: the answer that no longer comes through, such as "COMMIT"
        self._threads = [threading.Thread(target=self._serve)]
        self._threads[0].start()

    def _serve(self) -> None:
        with suppress(OSError):  # once it is closed
            while True:
                client, _ = self._door.accept()
                self._threads.append(threading.Thread(target=self._join, args=(client,)))
                self._threads[-1].start()

    def _join(self, client: socket.socket) -> None:
        """One connection, to its end."""
        with client, socket.create_connection(("127.0.0.1", self._to)) as server:
            back = threading.Thread(target=self._carry, args=(server, client, True))
            back.start()
            self._carry(client, server, False)
            back.join()

    def _carry(self, one: socket.socket, other: socket.socket, answers: bool) -> None:
        with suppress(OSError):
            while data := one.recv(65536):
                if answers and self.cut_at and self.cut_at in data:
                    self.cut_at = b""  # who comes again finds it mended
                    break
                other.sendall(data)
        for end in (one, other):
            with suppress(OSError):
                end.shutdown(socket.SHUT_RDWR)

    def close(self) -> None:
        """Let nobody in any more, and wait until all have left."""
        self._door.shutdown(socket.SHUT_RDWR)
        self._door.close()
        for thread in self._threads:
            thread.join()
