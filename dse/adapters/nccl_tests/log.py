"""Measured collectives of logs of nccl-tests and rccl-tests (`all_reduce_perf` and the like).

A log may have several tests. Each begins with a line that names its program, lists its ranks with their hosts, and has
a line for each message size. The time is the out-of-place one. nccl-tests counts bytes as `dse validate` does: the
whole tensor, for an all-to-all and a send the part of one rank.
"""

from __future__ import annotations

import re
from collections import Counter
from pathlib import Path
from typing import Final

from costmodel.errors import DseError
from costmodel.formats.input_files import checked_file, content
from dse.validation.expressed import system_named
from dse.validation.table import MeasuredRow

#: Program, without `_perf` -> collective.
TESTED: Final = {
    "all_reduce": "all_reduce", "all_gather": "all_gather", "reduce_scatter": "reduce_scatter",
    "alltoall": "all_to_all", "sendrecv": "send_recv",
}  # fmt: skip
#: Largest log. [B]
LARGEST: Final = 16 << 20
_PROGRAM: Final = re.compile(r"\b(\w+?)_perf(?:_mpi)?\b")
_RANK: Final = re.compile(r"#\s+Rank\s+\d+ .* on\s+(\S+) device")
#: Label of MPI, size [B], elements, type, operation and root where they are, and twice time [us], rates and errors.
_LINE: Final = re.compile(r"(?:\S+:)?\s*(\d+)\s+\d+\s+[a-z]\w*(?:\s+[a-z]+)?(\s+-?\d+)?((?:\s+(?:\d[-+.\de]*|N/A)){8})")


def read_nccl_tests(path: Path, system: str) -> list[MeasuredRow]:
    """Measured collectives of a log, on a system.

    Raises `DseError` for unreadable files, no lines of these tests, or hosts that are not whole nodes of the system.
    """
    checked_file(path, LARGEST)
    rows: list[MeasuredRow] = []
    of_node = int(system_named(system).quantities()["node_size"])
    collective, hosts, listed = "", Counter[str](), False
    for number, line in enumerate(content(path).decode("utf-8", errors="replace").splitlines(), 1):
        if rank := _RANK.search(line):
            hosts = hosts if listed else Counter()
            hosts[rank[1]] += 1
            listed = True
        elif measured := _LINE.fullmatch(line.rstrip()):
            listed = False
            if not collective or not hosts:
                raise DseError(f"{path}: line {number}: no line above names the test (all_reduce_perf) and its ranks")
            size, time = float(measured[1]), measured[3].split()[0]
            if collective in TESTED and size and hosts.total() > 1 and time != "N/A":
                if max(hosts.values()) > of_node or (len(hosts) > 1 and {*hosts.values()} != {of_node}):
                    ranks = " + ".join(map(str, dict.fromkeys(hosts.values())))
                    raise DseError(f"{path}: {len(hosts)} hosts with {ranks} ranks; nodes of {system} have {of_node} "
                                   "GPUs: use whole nodes, or a system file with this node_size")  # fmt: skip
                rows.append(MeasuredRow(
                    line=number, id=f"{path.name}:{number}", row_type="kernel_coll", dataset=path.name, hw=system,
                    op=TESTED[collective], msg_bytes=size, n_ranks=hosts.total(), latency_us=float(time),
                    source=f"nccl-tests, {path.name}",
                ))  # fmt: skip
        elif program := _PROGRAM.search(line):
            collective = program[1]
    if not rows:
        raise DseError(f"{path}: no times of nccl-tests; looked for lines of {', '.join(TESTED)} on several ranks")
    return rows
