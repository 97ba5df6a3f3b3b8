"""Workload files of other programs, evaluated from Python."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any, Literal

from costmodel.errors import ParameterError
from dse.api.design_files import checked_kind
from dse.registry import load

Note = Callable[[str], None]


def cost(
    file: str | Path, *, profile: str | None = None, note: Note = lambda text: None,
    system: str | None = None, barriers: Literal["barrier", "element"] | None = None,
    resolve: bool | None = None, prefer: str | None = None, most_groups: int | None = None,
    tile_size: int | None = None, gpus: int | None = None, gpus_per_server: int | None = None,
    busbw: str | Path | None = None, gpu_type: str | None = None, nvlink_bandwidth: float | None = None,
    nics_per_server: int | None = None, nic_type: str | None = None, nic_bandwidth: float | None = None,
    dp_overlap: float | None = None, tp_overlap: float | None = None, ep_overlap: float | None = None,
    pp_overlap: float | None = None, strict_compat: bool | None = None,
) -> dict[str, Any]:  # fmt: skip
    """Evaluate an HLO module, or a file of a reference model: the JSON of `dse evaluate FILE`.

    Raises `DseError` if the file is of no known kind, or not of the kind of its profile or of an option.

    Parameters
    ----------
    file : str or Path
        The file; its content tells its kind.
    profile : str, optional
        Rules that evaluate it; by default those of its kind.
    note : callable
        Called with each line on what was assumed.
    system, barriers : str, optional
        Of an HLO module.
    resolve, prefer, most_groups, tile_size
        Of a DFModel set-up.
    gpus, gpus_per_server, busbw, gpu_type, nvlink_bandwidth, nics_per_server, nic_type, nic_bandwidth
        Of an AICB workload, bandwidths in B/s; as for `simai_cost` and `network_of`.
    dp_overlap, tp_overlap, ep_overlap, pp_overlap, strict_compat
        Of an AICB workload, as for `simai_cost`.
    """
    options: dict[str, dict[str, Any]] = {
        "hlo": {"system": system, "barriers": barriers},
        "dfmodel": {
            "resolve": resolve, "prefer": prefer, "most_groups": most_groups, "tile_size": tile_size
        },
        "aicb": {
            "gpus": gpus, "gpus_per_server": gpus_per_server, "busbw": busbw, "gpu_type": gpu_type,
            "nvlink_bandwidth": nvlink_bandwidth, "nics_per_server": nics_per_server, "nic_type": nic_type,
            "nic_bandwidth": nic_bandwidth, "dp_overlap": dp_overlap, "tp_overlap": tp_overlap,
            "ep_overlap": ep_overlap, "pp_overlap": pp_overlap, "strict_compat": strict_compat,
        },
    }  # fmt: skip
    path = Path(file)
    kind = checked_kind(path, profile)
    given = {name: {key: value for key, value in own.items() if value is not None} for name, own in options.items()}
    chosen = given.pop(kind.name, {})
    if other := next((key for others in given.values() for key in others), None):
        raise ParameterError(f"{{{other}}}: not an option of {kind.title}, which {path} is")
    result: dict[str, Any] = load(kind.record)(path, profile or kind.profile(path), profile is not None, chosen, note)
    return result
