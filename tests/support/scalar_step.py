"""The step model once more, for one design at a time in plain Python numbers: what the tables must equal.

Written from the documentation of the model and not from its code: no NumPy, no tables, no factoring.
"""

import math
from types import SimpleNamespace
from typing import Any

from tests.support.scalar_pipeline import simulated

W, GRADIENT, STATE = 2.0, 4.0, 12.0


def plain(columns: Any, row: int) -> SimpleNamespace:
    """One row of a record of columns, as numbers."""
    return SimpleNamespace(
        **{name: float(v[row] if v.size > 1 else v.reshape(-1)[0]) for name, v in columns.columns().items()}
    )


class ScalarStep:
    """Time and memory of one design."""

    def __init__(self, model: Any, system: Any, design: Any, row: int) -> None:
        self.model, self.d = model, plain(design, row)
        self.chip, self.host = plain(system.chip, row), plain(system.host, row)
        self.levels = [plain(level, row) for level in system.memory]
        self.tiers = [plain(tier, row) for tier in system.network]
        self.dram_rate = self.levels[-1].bandwidth * self.levels[-1].efficiency
        self.lanes = 2 * self.chip.cores * self.chip.vector_lanes * self.chip.clock
        self.fused = self.d.attention > 0
        self.tokens = self.d.micro_batch_size * model.seq_len
        self.shared = self.d.tp if (self.d.sharding == 1) else 1.0

    # -- kernels ------------------------------------------------------------------------------------

    def edge(self, capacity: float) -> float:
        return 2.0 ** math.floor(math.log2(math.sqrt(capacity / W / 3)))

    def gemm(
        self, m: float, n: float, k: float, batch: float = 1.0, out: float = W, *, of_weights: bool = False
    ) -> float:
        along = m if of_weights or out != W else k
        pace = 2 / 3 if along % (16 / W) or n % (16 / W) else 1.0
        chip, levels = self.chip, self.levels
        rates = [level.bandwidth * level.efficiency for level in levels]
        feed = W * m * n * k * (1 / (chip.arrays_per_core * chip.array_height))
        feed += W * m * n * k * (1 / (chip.arrays_per_core * chip.array_width))
        floor = batch * feed / rates[0]
        for inner, rate in zip(levels[1:-1], rates[2:], strict=True):
            e = self.edge(inner.capacity)
            orders = []
            for rows, cols in ((m, n), (n, m)):
                again = math.ceil(cols / e) if k > e else 1
                orders.append(W * (rows * k * again + k * cols * math.ceil(rows / e)) + out * m * n)
            floor = max(floor, batch * min(orders) / rate)
        shares = ((0.5, 1), (1, 0.5), (0.5, 0.5), (0.25, 0.5), (0.5, 0.25), (0.25, 0.25))
        candidates = [(2.0**power, *pair) for power in range(16) for pair in shares]
        best = min(self.tiled(m, n, k, batch, out, *tile, floor, pace) for tile in candidates)  # type: ignore[call-arg]
        return best + chip.kernel_launch

    def tiled(
        self, m: float, n: float, k: float, batch: float, out: float, e: float, a: float, b: float, floor: float,
        pace: float,
    ) -> float:  # fmt: skip
        """The best of all numbers of pieces of k for one tile of one block."""
        chip, source = self.chip, self.levels[1]
        cores = min(chip.cores, math.floor(self.levels[0].capacity / (6 * W * e**2 / 2)))
        if cores < 1:
            return math.inf
        tile_m, tile_n, resident = max(e * a, 1), max(e * b, 1), 0.5 / (a * b)
        rows, cols = math.ceil(m / tile_m), math.ceil(n / tile_n)
        tiles = batch * rows * cols
        blocks = math.ceil(tile_m / chip.array_height) * math.ceil(tile_n / chip.array_width)
        rate = chip.clock * chip.sustained * chip.matrix_efficiency
        times = []
        most = cores // tiles if k > 1024 else 1
        for split in (2**power for power in range(20) if power == 0 or 2**power <= most):
            cycles = math.ceil(blocks / chip.arrays_per_core) * max(k / split, min(k, 1024)) / pace
            cycles += chip.array_height + chip.array_width
            waves = math.ceil(tiles * split / (resident * cores))
            per_core = math.ceil(tiles * split / cores)
            moved = W * (m * k * cols + k * n * rows) + out * m * n
            moved += 8 * split * m * n if split > 1 else 0
            time = per_core * cycles / rate + waves * chip.tile_latency
            times.append(max(time, batch * moved / (source.bandwidth * source.efficiency), floor))
        return min(times)

    def pointwise(self, elements: float, tensors: float, extra: float, flops: float) -> float:
        moved = elements * (W * tensors + extra) / self.dram_rate
        return max(elements * flops / self.lanes, moved) + self.chip.kernel_launch

    def flash(self, products: int, vector: int, query_tensors: int, key_tensors: int) -> float:
        chip, m, d = self.chip, self.model, self.d
        tiles_of_a_row = math.ceil(m.seq_len / 128)
        heads = d.micro_batch_size * m.num_attention_heads / d.tp
        scores = heads * m.seq_len**2 * (tiles_of_a_row + 1) / (2 * tiles_of_a_row)
        peak = 2 * chip.cores * chip.arrays_per_core * chip.array_height * chip.array_width * chip.clock
        time = scores * products * 2 * m.head_size / (peak * chip.sustained * chip.matrix_efficiency)
        time += scores * vector / self.lanes
        tiles = heads * tiles_of_a_row
        time *= math.ceil(tiles / chip.cores) * chip.cores / tiles
        queries = m.num_attention_heads * m.head_size
        keys = m.num_query_groups * m.head_size
        once = W * self.tokens * (query_tensors * queries + key_tensors * keys) / d.tp
        streamed = once + W * scores / 128 * key_tensors * m.head_size
        rates = [level.bandwidth * level.efficiency for level in self.levels]
        return max([time, streamed / rates[1], *[once / rate for rate in rates[2:]]]) + chip.kernel_launch

    # -- collectives --------------------------------------------------------------------------------

    def collective(self, name: str, message: float, group: float, stride: float) -> float:
        islands = [group]
        for tier in self.tiers[:-1]:
            islands.append(min(max(math.ceil(group * stride / tier.size), 1), islands[-1]))
        islands.append(1)
        passes = 2 if name == "all_reduce" else 1
        slowest, tree, transfer, launch, leaving = 0.0, 0.0, 0.0, 0.0, 1.0
        for index, (tier, inner, outer) in enumerate(zip(self.tiers, islands, islands[1:], strict=False)):
            n = inner / outer
            still_leaving = outer / group if outer > 1 else 0.0
            sent = passes * (group - 1) / group * (leaving - still_leaving) * message
            local = tier.own_share * message / group if n > 1 else 0.0
            time = self.moved(sent, tier, passes) + local
            if name == "all_reduce" and tier.in_switch and n > 1:
                up = (n + 1) / n * inner / group * message
                time = min(time, (self.moved(up, tier, passes) + local) / tier.in_switch_rate)
            if n > 1:
                slowest, launch = max(slowest, tier.latency), max(launch, tier.launch)
            tree += passes * (math.log2(n) if index else n - 1) * tier.latency
            transfer = max(transfer, time / (tier.bandwidth * tier.efficiency))
            leaving = still_leaving
        ring = passes * (group - 1) * slowest
        return (min(ring, tree) if passes == 2 else ring) + transfer + launch

    @staticmethod
    def moved(sent: float, tier: Any, passes: int = 1) -> float:
        fill = passes * tier.ramp
        return sent + fill * sent / (sent + fill) if sent else 0.0

    def tensor_parallel(self, name: str, hidden: float = 0.0) -> float:
        message = self.tokens * self.model.hidden_size * W
        time = self.collective(name, message, self.d.tp, 1)
        covered = min(time, hidden)
        return time - covered + covered * self.chip.collective_cores / self.chip.cores

    # -- one micro-batch ----------------------------------------------------------------------------

    def dispatched(self, time: float, communication: float, launches: int) -> tuple[float, float]:
        return time, max(communication, launches * self.host.dispatch - time)

    def layer(self) -> dict[str, tuple[float, float]]:
        m, d, t = self.model, self.d, self.tokens
        h, seq = m.hidden_size, t * m.hidden_size / self.shared
        heads = m.num_attention_heads * m.head_size
        keys = m.num_query_groups * m.head_size
        gate, mask = float(m.gated_mlp), float(m.dropout)
        up = (1 + gate) * m.ffn_hidden_size
        dense = [
            (t, (heads + 2 * keys) / d.tp, h),
            (t, h, heads / d.tp),
            (t, up / d.tp, h),
            (t, h, m.ffn_hidden_size / d.tp),
        ]
        ffn = t * m.ffn_hidden_size / d.tp
        forward = [self.gemm(*shape) for shape in dense]
        forward += [self.pointwise(seq, 2, 0, 8)] * 2 + [self.pointwise(seq, 3, mask, 4)] * 2
        forward += [self.pointwise(ffn, 2 + gate, 0, 12)]
        backward = [self.gemm(a, c, b) for a, b, c in dense]
        backward += [self.gemm(c, b, a, out=2 * GRADIENT) for a, b, c in dense]
        backward += [self.pointwise(seq, 5, 0, 12)] * 2 + [self.pointwise(seq, 5, mask, 2)] * 2
        backward += [self.pointwise(ffn, 3 + 2 * gate, 0, 16)]
        if m.biases:
            biases = t * (heads + 2 * keys + up) / d.tp + 2 * seq
            backward += [self.pointwise(biases, 1, 0, 1)]
        if m.position_embedding == "rotary":
            turned = t * (heads + keys) / d.tp
            forward.append(self.pointwise(turned, 2, 0, 6))
            backward.append(self.pointwise(turned, 2, 0, 6))
        core, core_backward = self.core()
        reduction = "reduce_scatter" if d.sharding == 1 else "all_reduce"
        gathering = self.tensor_parallel("all_gather") if d.sharding == 1 else 0.0
        communication = 2 * gathering + 2 * self.tensor_parallel(reduction)
        back = 0.0
        for a, b, c in (dense[0], dense[2]):
            back += self.tensor_parallel(reduction, self.gemm(c, b, a, out=2 * GRADIENT))
            if d.sharding == 1:
                back += self.tensor_parallel("all_gather", self.gemm(a, c, b))
        back += 2 * gathering
        collectives = (4 if d.sharding == 1 else 2) * (d.tp > 1)
        back_collectives = (6 if d.sharding == 1 else 2) * (d.tp > 1)
        return {
            "core": self.dispatched(sum(core), 0.0, len(core)),
            "forward": self.dispatched(sum(forward) + sum(core), communication, len(forward) + len(core) + collectives),
            "backward": self.dispatched(
                sum(backward) + sum(core_backward), back, len(backward) + len(core_backward) + back_collectives
            ),
        }

    def core(self) -> tuple[list[float], list[float]]:
        m, d = self.model, self.d
        if self.fused:
            return [self.flash(2, 16, 2, 2)], [self.flash(5, 40, 5, 4)]
        batch = d.micro_batch_size * m.num_attention_heads / d.tp
        s, width, mask = m.seq_len, m.head_size, float(m.dropout)
        scores = batch * s * s
        forward = [self.gemm(s, s, width, batch), self.gemm(s, width, s, batch)]
        backward = [
            self.gemm(s, width, s, batch),
            self.gemm(width, s, s, batch, of_weights=True),
            self.gemm(s, s, width, batch),
            self.gemm(s, width, s, batch, of_weights=True),
        ]
        forward.append(self.pointwise(scores, 2, 0, 8))
        backward.append(self.pointwise(scores, 3, 0, 6))
        if m.dropout:
            forward.append(self.pointwise(scores, 2, mask, 2))
            backward.append(self.pointwise(scores, 2, mask, 2))
        return forward, backward

    def outer(self) -> tuple[dict[str, tuple[float, float]], dict[str, tuple[float, float]]]:
        m, d, t = self.model, self.d, self.tokens
        seq, mask, sp = t * m.hidden_size / self.shared, float(m.dropout), bool(d.sharding == 1)
        split, regathers = d.tp > 1, sp and d.tp > 1
        out = self.tensor_parallel("reduce_scatter" if sp else "all_reduce")
        embedding = {
            "forward": self.dispatched(self.pointwise(seq, 2, mask, 2), out, 1 + split),
            "backward": self.dispatched(
                self.pointwise(seq, 1, mask + 2 * GRADIENT, 2),
                self.tensor_parallel("all_gather") if sp else 0.0,
                1 + regathers,
            ),
        }
        v, h = math.ceil(m.vocab_size / d.tp), m.hidden_size
        to_input, to_weight = self.gemm(t, h, v), self.gemm(h, v, t, out=2 * GRADIENT)
        forward = self.gemm(t, v, h) + self.pointwise(seq, 2, 0, 8) + self.pointwise(t * v, 1, 32, 6)
        backward = to_input + to_weight + self.pointwise(seq, 5, 0, 12) + self.pointwise(t * v, 1, 12, 3)
        back = self.tensor_parallel("reduce_scatter" if sp else "all_reduce", to_weight)
        back += self.tensor_parallel("all_gather", to_input) if sp else 0.0
        head = {
            "forward": self.dispatched(forward, self.tensor_parallel("all_gather") if sp else 0.0, 3 + regathers),
            "backward": self.dispatched(backward, back, 4 + split + regathers),
        }
        return embedding, head

    # -- the step -----------------------------------------------------------------------------------

    def step_time(self) -> float:
        m, d = self.model, self.d
        layer, (embedding, head) = self.layer(), self.outer()
        repeated = {0: (0.0, 0.0), 1: layer["core"], 2: layer["forward"]}[int(d.recompute)]
        again = sum(repeated)
        layers = m.num_layers / d.pp
        assert layers % d.vpp == 0, "the scalar model knows even stages only"
        hop = 0.0
        if d.pp > 1:
            whole = self.tokens * m.hidden_size * W
            tier = self.tiers[0] if d.pp * d.tp * d.dp <= self.tiers[0].size else self.tiers[1]
            hop = tier.launch + tier.latency + self.moved(whole / d.tp, tier) / (tier.bandwidth * tier.efficiency)
            if d.sharding != 1:
                hop += self.collective("all_gather", whole, d.tp, 1)
        p, v, steps = int(d.pp), int(d.vpp), int(d.gradient_accumulation_steps)
        forward = [layers * sum(layer["forward"]) + (v - (r == p - 1)) * hop for r in range(p)]
        backward = [layers * (sum(layer["backward"]) + again) + (v - (r == 0)) * hop for r in range(p)]
        for rank, part in ((0, embedding), (-1, head)):
            forward[rank] += sum(part["forward"])
            backward[rank] += sum(part["backward"])
        busy = [steps * (onward + back) for onward, back in zip(forward, backward, strict=True)]
        groups = -(-steps // p) * p if v > 1 else steps  # a group of micro-batches that is not full waits
        chunks = {"f": [span / v for span in forward], "b": [span / v for span in backward], "w": 0.0}
        time = simulated("interleaved", p, groups, v, **chunks)["makespan"] if p > 1 else busy[0]
        slowest = busy.index(max(busy))
        computing = layers * (layer["forward"][0] + layer["backward"][0] + repeated[0])
        if slowest == p - 1:
            computing += head["forward"][0] + head["backward"][0]
        if slowest == 0:
            computing += embedding["forward"][0] + embedding["backward"][0]
        nodes = max(d.tp * d.pp * d.dp / self.tiers[0].size, 1)
        host = self.host.step_overhead + self.host.straggler * math.log2(nodes) * steps * computing
        backward_window = layers * (sum(layer["backward"]) + again)
        forward_window = layers * sum(layer["forward"])
        return time + self.update(layers, backward_window, forward_window) + host

    def update(self, layers: float, backward_window: float, forward_window: float) -> float:
        m, d = self.model, self.d
        table = m.vocab_size * m.hidden_size / d.tp
        positions = m.seq_len * m.hidden_size / d.tp if m.position_embedding == "learned" else 0.0
        parameters = [layers * self.layer_parameters() for _ in range(int(d.pp))]
        parameters[0] += table + positions
        parameters[-1] += (2 if m.normalization == "layer_norm" else 1) * m.hidden_size
        if d.pp > 1 or not m.tied_embeddings:
            parameters[-1] += table

        def exposed(name: str, message: float, window: float) -> float:
            time = self.collective(name, message, d.dp, d.tp)
            return max(time - window, time / layers) if d.overlap_grad_reduce else time

        def late(arrival: float) -> float:
            if not d.zero:
                return exposed("all_reduce", arrival * GRADIENT, backward_window)
            scattered = exposed("reduce_scatter", arrival * GRADIENT, backward_window)
            return scattered + exposed("all_gather", arrival * W, forward_window)

        reduced = max(map(late, parameters))
        if m.tied_embeddings and d.pp > 1:
            message = m.vocab_size * m.hidden_size / d.tp * GRADIENT
            reduced += self.collective("all_reduce", message, 2, d.tp * d.dp * (d.pp - 1))
        owned = max(parameters) / (d.dp if d.zero else 1)
        for flops, accesses in ((4, 3), (3, 7)):
            reduced += max(flops * owned / self.lanes, accesses * owned * 4 / self.dram_rate)
            reduced += self.chip.kernel_launch
        return reduced + self.collective("all_reduce", 4.0, d.tp * d.pp * d.dp, 1)

    def layer_parameters(self) -> float:
        m, d = self.model, self.d
        h, ffn = m.hidden_size, m.ffn_hidden_size
        heads, keys = m.num_attention_heads * m.head_size, m.num_query_groups * m.head_size
        up = (2 if m.gated_mlp else 1) * ffn
        split = h * (heads + 2 * keys) + heads * h + h * up + ffn * h
        norms = (4 if m.normalization == "layer_norm" else 2) * h
        if not m.biases:
            return split / d.tp + norms
        return (split + heads + 2 * keys + up) / d.tp + norms + 2 * h

    # -- memory -------------------------------------------------------------------------------------

    def memory(self) -> dict[str, float]:
        """Bytes of the fuller of first and last stage, by part."""
        m, d, t = self.model, self.d, self.tokens
        table = m.vocab_size * m.hidden_size / d.tp
        positions = m.seq_len * m.hidden_size / d.tp if m.position_embedding == "learned" else 0.0
        final_norm = (2 if m.normalization == "layer_norm" else 1) * m.hidden_size
        layers = m.num_layers / d.pp
        of_layers = layers * self.layer_parameters()
        embedding_mask = t * m.hidden_size / self.shared * float(m.dropout)
        vocabulary = math.ceil(m.vocab_size / d.tp)
        head = 4 * t * m.hidden_size / self.shared + 6 * t * vocabulary
        steps, p, v = d.gradient_accumulation_steps, d.pp, d.vpp
        first_micro_batches = min(p * (1 + (p - 1) / (p * v)) if v > 1 else p, steps)
        last_chunks = min((v - 1) * p + 1, steps * v)
        kept = self.kept(int(d.recompute))
        if p == 1:
            own_head = 0.0 if m.tied_embeddings else table
            weights = of_layers + table + positions + own_head + final_norm
            stages = [(weights, layers * kept + embedding_mask, head)]
        else:
            first = of_layers + table + positions
            first_kept = first_micro_batches * layers * kept + min(p, steps) * embedding_mask
            last = of_layers + table + final_norm
            stages = [(first, first_kept, 0.0), (last, last_chunks * layers / v * kept, head)]
        parts = [self.stage(*stage) for stage in stages]
        return max(parts, key=lambda part: sum(part.values()))

    def reserved(self) -> float:
        """Bytes of the driver and of NCCL, whose channels are `collective_cores`, a power of two to peers."""
        d, channels = self.d, int(self.chip.collective_cores)
        world, stride = int(d.tp * d.cp * d.pp * d.dp), int(d.tp * d.cp * d.dp)
        node = int(self.tiers[0].size)
        sizes = [world, d.tp, d.cp, d.cp * d.dp]
        groups = sum(0 if size == 1 else 544 if size == 2 else 688 for size in sizes) * 2**20 / 24
        near = sum(stage * stride < node for stage in range(1, int(d.pp)))
        to_peers = 1 << (channels - 1).bit_length()
        peers = min(near, 2) * 3.28e9 / 224
        return float(self.chip.reserved_memory) + channels * groups + to_peers * peers

    def stage(self, weights: float, kept: float, loss: float) -> dict[str, float]:
        m, d, t = self.model, self.d, self.tokens
        whole, sp = W * t * m.hidden_size, d.sharding == 1 and d.tp > 1
        widest = W * t * (2 if m.gated_mlp else 1) * m.ffn_hidden_size / d.tp
        again = {0: 0.0, 1: self.kept(0) - self.kept(1), 2: self.kept(0)}[int(d.recompute)]
        messages = 0.0
        if d.pp > 1:
            messages = 4 * whole / d.tp + (0.0 if sp or d.tp == 1 else 2 * whole)
        return {
            "weights_memory": W * weights,
            "gradients_memory": GRADIENT * weights,
            "optimizer_memory": STATE * weights / (d.dp if d.zero else 1),
            "activations_memory": kept,
            "buffers_memory": max(again + 2 * widest + (whole if sp else 0.0), loss) + messages + 1e8,
        }

    def kept(self, recompute: int) -> float:
        """Bytes that one layer keeps of one micro-batch."""
        m, d, t = self.model, self.d, self.tokens
        if recompute == 2:
            return W * t * m.hidden_size / self.shared
        mask = 1 if m.dropout else 0
        queries, keys = m.num_attention_heads * m.head_size, m.num_query_groups * m.head_size
        norms_and_masks = t * m.hidden_size * (8 + 2 * mask) / self.shared
        projections = W * t * (2 * queries + 2 * keys) / d.tp
        mlp = W * t * m.ffn_hidden_size * (3 if m.gated_mlp else 2) / d.tp
        rows = t * m.num_attention_heads / d.tp
        if self.fused:
            scores = 4 * rows
        elif recompute == 1:
            scores = 0.0
        else:
            scores = rows * m.seq_len * (5 if m.dropout else 2)
        return norms_and_masks + projections + mlp + scores
