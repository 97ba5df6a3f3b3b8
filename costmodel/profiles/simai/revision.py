"""What changed between revisions of the simulator, as data."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final


@dataclass(frozen=True, kw_only=True, slots=True)
class Revision:
    """Rules of one revision of SimAI's analytical mode."""

    bandwidth: str  #: "file": bus bandwidths from a file; "links": from the machine
    bandwidth_unit: float  #: of a bus bandwidth [B/s]
    gather: str  #: the collective whose bandwidth all-gather takes over the tensor-parallel group
    bubble_by: str  #: column of `Parallelism` that divides the bubble beside the micro-batches
    overlaps: bool  #: whether ratios of overlap exist, and exposed pipeline messages
    least_forward_bytes: float  #: smaller messages of the forward pass count as this much [B]


REVISIONS: Final[Mapping[str, Revision]] = {
    "simai-2024-10": Revision(  # commit bf0a9a77
        bandwidth="file",
        bandwidth_unit=1e9,
        gather="all_reduce",
        bubble_by="pp",
        overlaps=False,
        least_forward_bytes=0,
    ),
    "simai-2024-12": Revision(  # commit 4e66932a
        bandwidth="file",
        bandwidth_unit=2.0**30,
        gather="all_gather",
        bubble_by="vpp",
        overlaps=True,
        least_forward_bytes=4096,
    ),
    "simai-2025-07": Revision(  # commit 13696181
        bandwidth="links",
        bandwidth_unit=2.0**30,
        gather="all_gather",
        bubble_by="vpp",
        overlaps=True,
        least_forward_bytes=4096,
    ),
}
