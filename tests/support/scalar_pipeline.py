"""Pipeline schedules once more, one design and one action at a time in plain Python: what tables must equal.

Orders are written out rank by rank as their sources write them, as lists; then every rank runs its list,
waiting for messages. No NumPy, no timetable, no slots.
"""

import math
from dataclasses import dataclass, field

#: One action: what runs ("F", "B", "W", "A" for B and W as one), on which stage, for which micro-batch.
Action = tuple[str, int, int]


@dataclass
class Rank:
    """The list of a rank; an entry holds one action, or the two of an overlapped pair."""

    stages: list[int]  #: by chunk
    entries: list[tuple[Action, ...]] = field(default_factory=list)
    seen: dict[tuple[str, int], int] = field(default_factory=dict)
    owed: list[tuple[int, int]] = field(default_factory=list)  #: weight gradients put off, oldest first

    def next(self, kind: str, chunk: int) -> Action:
        """The next micro-batch's action of a kind in a chunk."""
        counted = "B" if kind == "A" else kind
        micro = self.seen.get((counted, chunk), 0)
        self.seen[counted, chunk] = micro + 1
        if kind == "B":
            self.owed.append((self.stages[chunk], micro))
        return (kind, self.stages[chunk], micro)

    def run(self, *actions: tuple[str, int]) -> None:
        """One entry: an action or a pair."""
        self.entries.append(tuple(self.next(*action) for action in actions))

    def weight(self) -> None:
        """The oldest weight gradient that is owed."""
        stage, micro = self.owed.pop(0)
        self.entries.append((("W", stage, micro),))


def one_after_another(p: int, m: int, v: int, n: int, i: int) -> Rank:
    """GPipe and breadth first: all forwards of a chunk, then of the next."""
    rank = Rank([c * p + i for c in range(v)])
    for chunk in range(v):
        for _ in range(m):
            rank.run(("F", chunk))
    for chunk in reversed(range(v)):
        for _ in range(m):
            rank.run(("A", chunk))
    return rank


def in_turn(p: int, m: int, v: int, n: int, i: int) -> Rank:
    """1F1B, and interleaved in groups of n micro-batches."""
    rank = Rank([c * p + i for c in range(v)])
    groups = [min(n, m - start) for start in range(0, m, n)]
    forwards = [c for size in groups for c in range(v) for _ in range(size)]
    backwards = [c for size in groups for c in reversed(range(v)) for _ in range(size)]
    warm = min(2 * (p - 1 - i) + (v - 1) * n if v > 1 else p - 1 - i, m * v)
    for chunk in forwards[:warm]:
        rank.run(("F", chunk))
    for ahead, chunk in zip(forwards[warm:], backwards, strict=False):
        rank.run(("F", ahead))
        rank.run(("A", chunk))
    for chunk in backwards[len(forwards) - warm :]:
        rank.run(("A", chunk))
    return rank


def split(p: int, m: int, i: int, warm: int, behind: int) -> Rank:
    """ZB-H1 and ZB-H2: forwards ahead, weight gradients behind."""
    rank = Rank([i])
    for _ in range(min(warm, m)):
        rank.run(("F", 0))
    for j in range(m):
        if j + warm < m:
            rank.run(("F", 0))
        rank.run(("B", 0))
        if j >= behind:
            rank.weight()
    while rank.owed:
        rank.weight()
    return rank


def zb_v(p: int, m: int, v: int, n: int, i: int) -> Rank:
    """ZB-V by hand; for fewer micro-batches than fill it, those that are missing are left out."""
    rank, most = Rank([i, 2 * p - 1 - i]), max(m, 2 * p - 1)
    done = rank.seen

    def own_weight(chunk: int) -> None:
        rank.run(("W", chunk))

    for _ in range(2 * (p - i) - 1):
        rank.run(("F", 0))
    for _ in range(i):
        rank.run(("F", 1))
        rank.run(("F", 0))
    for _ in range(p - i):
        rank.run(("F", 1))
        rank.run(("B", 1))
        own_weight(1)
    while done["F", 1] < most:
        if done["F", 0] < most:
            rank.run(("F", 0))
        for chunk in (0, 1):
            if chunk:
                rank.run(("F", 1))
            rank.run(("B", chunk))
            own_weight(chunk)
    for _ in range(i):
        rank.run(("B", 0))
        rank.run(("B", 1))
    for _ in range(p - i):
        rank.run(("B", 0))
        own_weight(0)
    for chunk in (1, 0):
        while done.get(("W", chunk), 0) < most:
            own_weight(chunk)
    rank.entries = [entry for entry in rank.entries if entry[0][2] < m]
    return rank


def dual(rank: Rank, size: int, position: int, micros: int) -> Rank:
    """DualPipe's order on a place of half a pipeline; chunk 0 is the one that starts nearer."""
    rest = size - 1 - position
    for _ in range(2 * rest):
        rank.run(("F", 0))
    for _ in range(position + 1):
        rank.run(("F", 0))
        rank.run(("F", 1))
    for _ in range(rest):
        rank.run(("B", 1))
        rank.weight()
        rank.run(("F", 1))
    for turn in range(micros - 2 * size + position + 1):
        if turn == 0 and rest == 0:
            rank.run(("F", 0))
            rank.run(("A", 1))
        else:
            rank.run(("F", 0), ("A", 1))
        rank.run(("F", 1), ("A", 0))
    for _ in range(rest):
        rank.run(("A", 1))
        rank.run(("F", 1), ("A", 0))
    split_off = False
    for turn in range(position + 1):
        half = turn == (position + 1) // 2
        split_off |= half and position % 2 == 1
        rank.run(("B" if split_off else "A", 1))
        split_off |= half and position % 2 == 0
        rank.run(("B" if split_off else "A", 0))
    for _ in range(rest):
        rank.weight()
        rank.run(("B", 0))
    for _ in range(position + 1):
        rank.weight()
    return rank


def dualpipe(p: int, m: int, v: int, n: int, i: int) -> Rank:
    """Two pipelines in opposite directions: stage s of the second is p + s, on rank p - 1 - s."""
    near, far = i, p + p - 1 - i
    mirrored = i >= p // 2
    return dual(Rank([far, near] if mirrored else [near, far]), p // 2, min(i, p - 1 - i), m // 2)


def dualpipe_v(p: int, m: int, v: int, n: int, i: int) -> Rank:
    """DualPipe cut in half."""
    return dual(Rank([i, 2 * p - 1 - i]), p, i, m)


ORDERS = {
    "gpipe": one_after_another,
    "breadth_first": one_after_another,
    "1f1b": in_turn,
    "interleaved": in_turn,
    "zb_h1": lambda p, m, v, n, i: split(p, m, i, p - 1 - i, i),
    "zb_h2": lambda p, m, v, n, i: split(p, m, i, 2 * (p - 1 - i), 2 * i),
    "zb_v": zb_v,
    "dualpipe": dualpipe,
    "dualpipe_v": dualpipe_v,
}


def simulated(
    schedule, p, m, v, n=None, *, f, b, w, comm=0.0, pair=None, scale=None
) -> dict[str, float]:  # fmt: skip
    """The columns of one design, by running every rank's list; `f` and `b` may be lists, a time a rank."""
    ranks = [ORDERS[schedule](p, m, v, n or p, i) for i in range(p)]
    home = {stage: i for i, rank in enumerate(ranks) for stage in rank.stages}
    ends_of_chains = {p - 1, 2 * p - 1} if schedule == "dualpipe" else {max(home)}
    scale = scale or [1.0] * p
    fs, bs = (times if isinstance(times, list) else [times] * p for times in (f, b))
    took = [{"F": fs[i], "B": bs[i], "W": w, "A": bs[i] + w} for i in range(p)]
    end: dict[Action, float] = {}
    clock, first, busy, positions = [0.0] * p, [math.nan] * p, [0.0] * p, [0] * p
    until_b, until_w, messages = [0] * p, [0] * p, 0
    held_b, held_w = [0] * p, [0] * p

    def source(action: Action) -> tuple[str, int] | None:
        kind, stage, _ = action
        if kind == "F":
            return None if stage - 1 in ends_of_chains or stage == 0 else ("F", stage - 1)
        return None if kind == "W" or stage in ends_of_chains else ("B", stage + 1)

    while any(positions[i] < len(ranks[i].entries) for i in range(p)):
        moved = False
        for i, rank in enumerate(ranks):
            while positions[i] < len(rank.entries):
                entry = rank.entries[positions[i]]
                needs = [(*needed, a[2]) for a in entry if (needed := source(a))]
                if not all(needed in end for needed in needs):
                    break
                far = [needed for needed in needs if home[needed[1]] != i]
                start = max([clock[i], *(end[x] + comm * (x in far) for x in needs)])
                time = sum(took[i][a[0]] for a in entry)
                if len(entry) == 2 and pair:
                    time = pair
                first[i] = start if math.isnan(first[i]) else first[i]
                clock[i], busy[i] = start + time * scale[i], busy[i] + time * scale[i]
                messages += len(far)
                for kind, stage, micro in entry:
                    end["B" if kind == "A" else kind, stage, micro] = clock[i]
                for kind, _, _ in entry:
                    held_b[i] += kind == "F"
                    held_w[i] += kind == "F"
                until_b[i], until_w[i] = max(until_b[i], held_b[i]), max(until_w[i], held_w[i])
                for kind, _, _ in entry:
                    held_b[i] -= kind in "BA"
                    held_w[i] -= kind in "WA"
                positions[i] += 1
                moved = True
        assert moved, f"{schedule}: stuck"
    assert not any(held_w), f"{schedule}: not all is done"
    span = max(e - s for e, s in zip(clock, first, strict=True))
    return {
        "makespan": max(clock), "span": span, "idle": max(clock) - max(busy), "idle_in_span": span - max(busy),
        "peak_until_b": max(until_b), "peak_until_w": max(until_w), "messages": messages,
    }  # fmt: skip
