"""A PostgreSQL server of one's own, where its programs are installed."""

import importlib.util
import os
import shutil
import subprocess
import tempfile
from contextlib import contextmanager
from pathlib import Path


@contextmanager
def postgresql_server():
    """URL of a temporary server's database; None where there are no server programs, or no driver."""
    found = shutil.which("initdb") or next(map(str, Path("/usr/lib/postgresql").glob("*/bin/initdb")), None)
    if found is None or importlib.util.find_spec("psycopg") is None:
        yield None
        return
    programs, folder = Path(found).parent, Path(tempfile.mkdtemp(prefix="dse"))
    as_user = []
    if os.geteuid() == 0:  # PostgreSQL refuses to run as root
        shutil.chown(folder, "postgres")
        as_user = ["setpriv", "--reuid=postgres", "--regid=postgres", "--clear-groups"]

    def call(program, *arguments):
        command = [*as_user, programs / program, *arguments]
        subprocess.run(command, check=True, stdout=subprocess.DEVNULL, cwd=folder)

    data, port = folder / "data", 20000 + os.getpid() % 20000
    options = f"-p {port} -k {folder} -c listen_addresses=127.0.0.1 -c fsync=off"
    call("initdb", "-D", data, "-U", "dse", "--auth=trust", "-E", "UTF8")
    call("pg_ctl", "-D", data, "-o", options, "-l", folder / "log", "-w", "start")
    try:
        yield f"postgresql://dse@127.0.0.1:{port}/postgres"
    finally:
        call("pg_ctl", "-D", data, "-m", "immediate", "-w", "stop")
        shutil.rmtree(folder)
