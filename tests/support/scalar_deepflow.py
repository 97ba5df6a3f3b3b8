"""DeepFlow's rules once more, one configuration at a time, in plain Python: a second opinion for tests.

Follows the written rules (HW, TL, GT, RF, PW, OP, TT, MF and the parallel rules), and shares no code with
the profile.
"""

from __future__ import annotations

from math import ceil, floor, log2, sqrt
from types import SimpleNamespace

LATENCY = 50e-9
NONE, CR, RC = 0, 1, 2


def machine(c: SimpleNamespace) -> SimpleNamespace:
    """HW1 to HW7, TL1."""

    def tile(size: float) -> int:
        return 2 ** floor(log2(sqrt(size / c.element_bytes / 3))) if size > 0 else 0

    f = c.core_fraction * c.tdp / c.flop_energy * c.core_derate
    w1 = c.dram_fraction * c.tdp / c.dram_energy * c.dram_derate
    w2 = c.l2_fraction * c.tdp / c.l2_energy
    sm = c.shared_memory_fraction * c.tdp / c.shared_memory_energy
    l2_size, sm_size = (x / c.bank_bandwidth * c.bank_capacity for x in (w2, sm))
    dims = [getattr(c, f"{p}_dim{i}") for p in ("hidden", "softmax", "projection", "embedding") for i in (1, 2)]
    groups = (c.dp > 1) + (c.lp > 1) + (max(dims) > 1)
    links = {0: 0, 1: c.dp * c.hidden_dim1, 2: 2 * c.dp * c.hidden_dim1, 3: 3 * c.dp * c.hidden_dim1 * c.lp}
    power = c.link_fraction * c.tdp
    link = power / (links[groups] * c.link_energy) if groups and c.mesh else 0.0
    return SimpleNamespace(f=f, w1=w1, w2=w2, link=link, t2=tile(l2_size), ts=tile(sm_size),
                           dram=w1 / c.dram_derate / c.stack_bandwidth * c.stack_capacity)  # fmt: skip


class Scalar:
    """One configuration."""

    def __init__(self, c: SimpleNamespace) -> None:
        self.c, self.hw = c, machine(c)
        self.B = ceil(c.batch_size / c.dp)
        self.T = self.B * c.seq_len
        self.D, self.GD, self.V, self.P = (c.hidden_size, c.gates * c.hidden_size, c.vocab_size, c.projection_size)
        self.w, self.O = c.element_bytes, c.launch_overhead

    def roofline(self, flop: float, gmem: float, l2: float = 0.0) -> float:
        if flop / gmem < self.hw.f / self.hw.w1:
            return gmem / self.hw.w1 + LATENCY + (l2 / self.hw.w2 if self.hw.w2 else 0.0)
        return flop / self.hw.f

    def gemm(self, m: float, k: float, n: float) -> float:
        def traffic(m: float, n: float, t: int) -> float:
            if t == 0:
                return self.w * (m * k + k * n + m * n)
            return self.w * (m * k * (1 if k <= t else ceil(n / t)) + k * n * ceil(m / t) + m * n)

        flop = 2 * m * k * n + m * n * (15 + 5 * ceil(k / self.hw.ts))
        direct, swapped = (
            self.roofline(flop, traffic(*order, self.hw.t2), traffic(*order, self.hw.ts)) + self.O
            for order in ((m, n), (n, m))
        )
        return swapped if swapped < direct else direct

    def ring(self, d0: float, d1: float, p: int, factor: int, reducing: bool) -> float:
        if p == 1:
            return 0.0
        size, n = self.w * d0 * d1, d0 * d1
        if size < 128:
            part = 1 if factor == 2 else 1 / p
            prep = self.roofline((p - 1) * n, 3 * self.w * (p - 1) * n) * part
            return size * part + (prep if reducing else 0.0)
        transfer = (size / p / self.hw.link + self.c.link_latency) * factor * (p - 1)
        prep = (self.roofline(n / p, 3 * self.w * n / p) + self.O) * (p - 1)
        return transfer + (prep if reducing else 0.0)

    def gather(self, d0: float, d1: float, p: int) -> float:
        return self.ring(d0, d1, p, 1, False)

    def products(self, part: str) -> tuple[float, float]:
        """Products of a part with their collectives, forward and backward."""
        kind, a, b = (getattr(self.c, f"{part}_{x}") for x in ("kind", "dim1", "dim2"))
        m = self.B if part == "hidden" else self.T
        n = {"hidden": self.GD, "softmax": self.V, "projection": self.P}[part]
        kf = kb = 2 * self.D if part == "hidden" else self.D
        if part == "softmax" and kind == CR:
            kf = kb = self.P
        if part == "softmax" and kind == RC:
            kf = self.P
        if kind == NONE:
            return self.gemm(m, kf, n), self.gemm(m, n, kb) + self.gemm(kb, m, n)
        if kind == CR:
            return (
                self.gemm(m, kf / a, n) + self.ring(m, n, a, 1, True),
                self.gemm(kb / a, m, n) + self.gemm(m, n, kb / a) + 2 * self.gather(m, n, a),
            )
        return (
            self.gemm(m / a, kf, n / b) + self.gather(m / a, n, b),
            self.gemm(kb / a, m, n / b) + self.gemm(m / a, n, kb / b) + self.gather(kb, m, a)
            + 2 * self.gather(m, n / b, a) + self.gather(m / a, n, b) + self.gather(kb, n, b)
            + self.gather(m / a, kb, b),
        )  # fmt: skip

    def cell(self) -> tuple[float, float]:
        c, w, B, D, GD = self.c, self.w, self.B, self.D, self.GD
        forward, backward = self.products("hidden")
        a, b = c.hidden_dim1, c.hidden_dim2
        if c.hidden_kind == NONE:
            forward += self.roofline(B * GD * (1 + 5 / 4 + 1), w * B * GD * (6 + 2 * 5 / 4)) + 15 * self.O
            return forward, backward + 15 * self.O + self.roofline(
                B * D * 3.25 + 2 * D * GD, w * B * D * 8.5 + 3 * 2 * D * GD
            )
        e = B * GD / a if c.hidden_kind == CR else (B / a) * (GD / b)
        pointwise = self.roofline(4 * e, 11 * w * e) + self.O
        back = e if c.hidden_kind == CR else B * (GD / b)
        return forward + pointwise + 3 * e / self.hw.link, backward + pointwise + 3 * back / self.hw.link

    def softmax(self) -> tuple[float, float]:
        c, w, T, V = self.c, self.w, self.T, self.V
        forward, backward = self.products("softmax")
        a, b = c.softmax_dim1, c.softmax_dim2
        if c.softmax_kind == NONE:
            forward += self.roofline(T * (3 * V - 1), w * T * 7 * V) + 4 * self.O
            return forward, backward + self.roofline(5 * T * V, w * T * 11 * V) + 4 * self.O
        e = T * V / a if c.softmax_kind == CR else (T / a) * (V / b)
        sums = w * T * a / self.hw.link if c.softmax_kind == CR else w * (T / a) * b / self.hw.link
        forward += self.roofline(3 * e, 7 * w * e) + self.O + sums
        return forward, backward + self.roofline(5 * e, 11 * w * e) + self.O

    def optimizer(self, n: float) -> float:
        return self.roofline(4 * n, 3 * n * self.w) + self.roofline(3 * n, 7 * n * self.w)

    def time(self) -> float:
        """TT4 and the transfer-bound regimes."""
        c = self.c
        L, S, h = c.num_layers, c.seq_len, c.hlp
        q = L / h
        cf, cb = self.cell()
        sf, sb = self.softmax()
        r = self.ring(2 * self.D, self.GD, c.dp, 2, True) + self.optimizer(2 * self.D * self.GD)
        embedding = 2 * self.T * self.D * self.w / self.hw.w1 + LATENCY + self.O
        base = sf + sb + 2 * embedding + self.optimizer(self.D * self.V)
        if c.dp > 1:
            base += (self.w * self.T * self.D / self.hw.link + c.link_latency) * 2 * (c.dp - 1)
        hop = self.w * self.B * self.D / self.hw.link if c.lp > 1 else 0.0
        if hop <= q * cf:
            fwd = (L + q * (S - 1)) * cf + hop * (h - 1)
            bwd = ((L + q * (S - 1)) * cb + hop * (h - 1) + r if cb >= r
                   else (L + q * (S - 2) + 1) * cb + q * r)  # fmt: skip
        elif hop >= q * cb:
            fwd = L * cf + (S + h - 2) * hop
            bwd = (L * cb + (S + h - 2) * hop + r if cb >= r
                   else (L - q + 1) * cb + (S + h - 2) * hop + q * r)  # fmt: skip
        else:
            fwd = L * cf + (S + h - 2) * hop
            bwd = ((L + q * (S - 1)) * cb + hop * (h - 1) + r if cb >= r
                   else (L + q * (S - 2) + 1) * cb + q * r)  # fmt: skip
        return base + fwd + bwd

    def shard_bytes(self) -> float:
        """Footprint per data shard and model shard."""
        c, S = self.c, self.c.seq_len

        def dims(part: str) -> tuple[float, float, float]:
            kind, a, b = (getattr(c, f"{part}_{x}") for x in ("kind", "dim1", "dim2"))
            return (self.B / a, 1, b) if kind == RC else (self.B, a, 1)

        B, k, n = dims("hidden")
        L, wide = c.num_layers / c.hlp, 2 * self.D / k
        elements = B * wide * S * L + (wide + 1) * (self.GD / n) * L + 9 * L * S * (B * wide / 2)
        B, k, n = dims("softmax")
        v = self.V / n
        elements += B * S * v + (self.P / k + 1) * v + 2 * B * S * v + B * S
        B, k, n = dims("projection")
        elements += 2 * B * S * self.P / n + (self.D / k + 1) * self.P / n
        by = c.embedding_dim1 * (1 if c.embedding_kind == CR else c.embedding_dim2)
        return (elements + self.B / by * S * self.D + self.V * self.D) * self.w
