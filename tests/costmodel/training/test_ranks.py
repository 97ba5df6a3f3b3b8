"""Process groups of a design; `kernels/test_networks.py` numbers the ranks of groups one by one."""

import numpy as np
import pytest

from costmodel import DesignPoints, LstmDesign
from costmodel.training.ranks import ORDER, Ranks

SIZES = {"tp": 2, "dp": 3, "pp": 5}


def ranks(sizes: dict[str, int]) -> Ranks:
    return Ranks({axis: np.array([float(size)]) for axis, size in sizes.items()})


def test_groups_of_axes_apart_have_no_stride():
    with pytest.raises(ValueError, match="expected neighbours in the order tp, dp, pp"):
        ranks(SIZES).group("tp", "pp")


def test_the_ends_of_an_axis_are_its_first_and_its_last_rank():
    ends = ranks(SIZES).ends("pp")
    assert (ends.size, ends.stride) == (2, 4 * SIZES["tp"] * SIZES["dp"])
    assert ranks({**SIZES, "pp": 1}).ends("pp").size == 1


def test_a_design_has_the_ranks_of_its_axes():
    design = DesignPoints.of(tp=[2, 4], dp=[3, 1], pp=[5, 7])
    assert [*design.ranks.sizes] == [*ORDER]
    assert design.world_size.tolist() == [30, 28]
    assert design.ranks.all.size.tolist() == [30, 28]
    assert design.ranks.group("pp").stride.tolist() == [6, 4]


def test_the_same_ranks_may_be_seen_in_two_ways():
    """Cells split by rows and columns, and a softmax split by its inner dimension, on the same twelve."""
    design = LstmDesign.of(dp=3, hidden_kind="rc", hidden_dim1=2, hidden_dim2=2, softmax_kind="cr", softmax_dim1=4)
    cells, words = design.ranks(design.hidden), design.ranks(design.softmax)
    assert cells.all.size == words.all.size == design.world_size == 12
    assert (cells.group("rows", "dp").size, cells.group("rows", "dp").stride) == (6, 2)
    assert (words.group("rows", "dp").size, words.group("rows", "dp").stride) == (3, 4)
