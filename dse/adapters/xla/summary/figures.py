"""Figures of a module by name: numbers, and short texts where several belong together.

The same names for any module; those of parts that a module lacks are left out.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from math import prod
from typing import Final

from costmodel.columns import grouped
from dse.adapters.xla.analysis import Analysis
from dse.adapters.xla.buffers.liveness import aliased_outputs
from dse.adapters.xla.summary.training_figures import Figures, model_figures, training_figures
from dse.adapters.xla.text.module import placement
from dse.adapters.xla.training.provenance import global_dims, numbers, part
from dse.adapters.xla.work.cost_analysis import POINTER_BYTES, Access, CostAnalysis, Work
from dse.adapters.xla.work.kernel_graph import HloKernel
from dse.adapters.xla.work.matrix_products import is_product

#: Rates of a machine for comparing readers of HLO: of matrix products, of other work, of memory, of links.
TOY_GEMM, TOY_OTHER, TOY_MEMORY, TOY_LINK = 1e14, 1e13, 1e12, 1e11

_PHASE: Final = {"forward": "fwd", "backward": "bwd"}


def figures(analysis: Analysis) -> Figures:
    """All figures of a module, for all runs of each kernel: name -> number or text. [FLOP], [B], [s], [-]"""
    groups = (
        text_figures, graph_figures, work_figures, gemm_figures, toy_machine_figures, collective_figures,
        memory_figures, state_figures, rule_figures, model_figures, training_figures, kernel_figures,
    )  # fmt: skip
    return {name: value for group in groups for name, value in group(analysis).items()}


def text_figures(analysis: Analysis) -> Figures:
    """Computations, instructions, fusions and parameters that the text holds."""
    module = analysis.module
    entry = module.entry
    nested = [i for body in module.computations if body is not entry for i in body.instructions]
    instructions = [*entry.instructions, *nested]
    root = list(entry.root.shape.leaves())
    fusions = [instruction for instruction in entry.instructions if instruction.opcode == "fusion"]
    return {
        "file.sha256": module.sha256,
        "file.bytes": module.text_bytes,
        "module.computations": len(module.computations),
        "module.instructions": len(instructions),
        "module.operands": sum(len(instruction.operands) for instruction in instructions),
        "entry.name": entry.name,
        "entry.instructions": len(entry.instructions),
        **_counted("entry.op.", (instruction.opcode for instruction in entry.instructions)),
        **_counted("nested.op.", (instruction.opcode for instruction in nested)),
        **_counted("entry.fusion.kind.", (fusion.attributes.get("kind", "none") for fusion in fusions)),
        "entry.fusion.multi_output": sum(fusion.shape.is_tuple for fusion in fusions),
        "entry.parameter_bytes": sum(parameter.shape.bytes for parameter in entry.parameters),
        "entry.root_leaf_bytes": sum(leaf.bytes for leaf in root),
        "entry.root_leaves": len(root),
        "entry.aliased_outputs": len(aliased_outputs(module)),
        "control_edges": sum("control-predecessors" in instruction.attributes for instruction in entry.instructions),
    }


def _counted(prefix: str, words: Iterable[str]) -> Figures:
    return {prefix + word: count for word, count in sorted(Counter(words).items())}


def graph_figures(analysis: Analysis) -> Figures:
    """Kernels, and chains of them, in pure data flow and with barriers."""
    figures_of_graph: Figures = {"graph.kernels": len(analysis.graph.kernels)}
    for suffix, graph in (("", analysis.graph), ("_barrier_semantics", analysis.barrier_graph)):
        gemms = [kernel.count * sum(p.flops for p in kernel.products) for kernel in graph.kernels]
        figures_of_graph |= {
            f"graph.edges{suffix}": len(graph.edges),
            f"graph.longest_path_kernels{suffix}": graph.longest_path([1] * len(graph.kernels)),
            f"graph.longest_path_gemm_flops{suffix}": graph.longest_path(gemms),
        }
    return figures_of_graph


def work_figures(analysis: Analysis) -> Figures:
    """Work and traffic by kind of kernel, and in total."""
    rows, kinds = list(_rows(analysis)), dict[str, Counter[str]]()
    for kernel, work, access in rows:
        totals = kinds.setdefault(kernel.kind, Counter())
        totals["count"] += kernel.count
        totals["gemm_flops"] += kernel.count * sum(p.flops for p in kernel.products)
        totals["other_flops_and_transcendentals"] += kernel.count * work.total
        totals["bytes"] += kernel.count * access.total
    return {
        "elementwise.flops_total": sum(k.count * work.flops for k, work, _ in rows if k.kind != "collective"),
        "transcendentals_total": sum(kernel.count * work.transcendentals for kernel, work, _ in rows),
        "bytes.kernels_total": sum(kernel.count * access.total for kernel, _, access in rows),
        "naive.bytes_in": sum(kernel.count * kernel.instruction.operand_bytes for kernel, *_ in rows),
        "naive.bytes_out": sum(kernel.count * kernel.instruction.shape.bytes for kernel, *_ in rows),
        **{f"kind.{kind}.{name}": value for kind in sorted(kinds) for name, value in kinds[kind].items()},
    }


def _rows(analysis: Analysis) -> Iterable[tuple[HloKernel, Work, Access]]:
    return zip(analysis.graph.kernels, analysis.work, analysis.access, strict=True)


def gemm_figures(analysis: Analysis) -> Figures:
    """Matrix products: in total, by operand, by phase and part, by shape."""
    products = [
        (kernel.count, product, f"{_PHASE.get(phase, phase)}_{part(kernel)}")
        for kernel, phase in zip(analysis.graph.kernels, analysis.phases, strict=True)
        for product in kernel.products
    ]
    figures_of_products: Figures = {
        "gemm.flops_total": sum(count * product.flops for count, product, _ in products),
        "gemm.count": sum(count for count, *_ in products),
        "gemm.batched_count": sum(count for count, product, _ in products if product.batch > 1),
        "gemm.beta1_count": sum(count for count, product, _ in products if product.beta),
    }
    for index, operand in enumerate("ABC"):
        sizes = [count * p.operands[index].bytes for count, p, _ in products if index < len(p.operands)]
        figures_of_products[f"gemm.bytes_{operand}"] = sum(sizes)
    figures_of_products["gemm.bytes_out"] = sum(count * product.output.bytes for count, product, _ in products)
    phases = [(f"phase.{phase}", count, p) for count, p, phase in products]
    shapes = [(f"shape.b{p.batch}_m{p.m}_n{p.n}_k{p.k}_beta{int(p.beta)}", count, p) for count, p, _ in products]
    sums: dict[str, tuple[int, int]] = {}
    for key, count, p in (*phases, *shapes):
        ops, flops = sums.get(key, (0, 0))
        sums[key] = ops + count, flops + count * p.flops
    return figures_of_products | {f"gemm.{key}": f"{ops} ops {flops} flops" for key, (ops, flops) in sums.items()}


def toy_machine_figures(analysis: Analysis) -> Figures:
    """Time of all kernels one after the other on a machine of round numbers. [s]"""
    gemm = other = collective = 0.0
    for index, (kernel, work, access) in enumerate(_rows(analysis)):
        memory = access.total / TOY_MEMORY
        if index in analysis.collectives and not kernel.products:
            collective += kernel.count * analysis.collectives[index].ring_bytes / TOY_LINK
        elif kernel.products:
            gemm += kernel.count * max(sum(p.flops for p in kernel.products) / TOY_GEMM, memory)
        else:
            other += kernel.count * max(work.total / TOY_OTHER, memory)
    times = {"gemm": gemm, "other": other, "collective": collective, "serial": gemm + other + collective}
    return {f"toy_machine.{name}_seconds": time for name, time in times.items()}


def collective_figures(analysis: Analysis) -> Figures:
    """Messages by kind and shape of their groups."""
    kernels = analysis.graph.kernels
    figures_of_collectives: Figures = {
        "collective.count": sum(kernels[number].count for number in analysis.collectives)
    }
    for name, places in collectives_by_group(analysis).items():
        members = [(kernels[number].count, analysis.collectives[number]) for number in places]
        groups = members[0][1].groups
        written = ",".join(f"[{','.join(map(str, group))}]" for group in groups)
        figures_of_collectives |= {
            f"{name}.groups": f"[{written}]",
            f"{name}.count": sum(count for count, _ in members),
            f"{name}.operands": sum(count * c.operands for count, c in members),
            f"{name}.payload_bytes": sum(count * c.payload_bytes for count, c in members),
            f"{name}.ring_wire_bytes_per_device": round(sum(count * c.ring_bytes for count, c in members)),
        }
        for reducer in sorted({c.reducer for _, c in members if c.reducer}):
            reducing = [(count, c) for count, c in members if c.reducer == reducer]
            ops, moved = sum(n for n, _ in reducing), sum(n * c.payload_bytes for n, c in reducing)
            figures_of_collectives[f"{name}.reducer.{reducer}"] = f"{ops} ops {moved} bytes"
    return figures_of_collectives


def collectives_by_group(analysis: Analysis) -> dict[str, list[int]]:
    """Places of collectives among the kernels, by kind and groups: ``all-reduce.2x8`` is 2 groups of 8.

    Other groups of the same number and size are distinguished by a further number: ``all-reduce.2x8.2``.
    """
    by_group = grouped(((one.name, one.groups), number) for number, one in analysis.collectives.items())
    named, times = dict[str, list[int]](), Counter[str]()
    for (kind, groups), places in by_group.items():
        name = f"{kind}.{len(groups)}x{placement(groups).size}"
        times[name] += 1
        named[f"{name}.{times[name]}" if times[name] > 1 else name] = places
    return named


def memory_figures(analysis: Analysis) -> Figures:
    """Peaks of temporary memory; each belongs to the order of the kernels that it names."""
    most, kernel = analysis.as_written.peak()
    return {
        "memory.text_order_peak_temp_bytes": most,
        "memory.text_order_peak_at": kernel,
        "memory.largest_kernel_working_set_bytes": analysis.as_written.largest_kernel_bytes,
        "memory.eager_dW_order_peak_temp_bytes": analysis.freed_early.peak()[0],
    }


def state_figures(analysis: Analysis) -> Figures:
    """Weights, optimizer states and the kernels that update them."""
    state = analysis.state
    if not state.weights:
        return {}
    elements = sum(weight.shape.size for weight in state.weights)
    shapes = [global_dims(weight) for weight in state.weights]
    split = sum(shape != weight.shape.dims for shape, weight in zip(shapes, state.weights, strict=True))
    figures_of_state: Figures = {
        "state.weights": numbers(state.weights),
        "params.tensors": len(state.weights),
        "params.local_elements": elements,
        "params.global_elements": sum(map(prod, shapes)),
        f"params.local_bytes_{state.weights[0].shape.dtype}": sum(weight.shape.bytes for weight in state.weights),
        "params.replicated_tensors": len(shapes) - split,
        "params.tp_sharded_tensors": split,
    }
    if len(state.moments) != 2:  # not of Adam
        return figures_of_state
    moments = [array for moment in state.moments for array in moment]
    updates = [row for row, phase in zip(_rows(analysis), analysis.phases, strict=True) if phase == "optimizer"]
    read = {leaf.parameter for kernel, *_ in updates for leaf in kernel.reads}
    counters = [int(counter.argument) for counter in state.counters]
    numbered = dict(zip(("state.step_param", "state.adam_count"), counters, strict=True)) if len(counters) == 2 else {}
    return figures_of_state | numbered | {
        "state.adam_mu": numbers(state.moments[0]),
        "state.adam_nu": numbers(state.moments[1]),
        "params.plus_adam_local_bytes": sum(array.shape.bytes for array in (*state.weights, *moments)),
        "adam.fusions": len(updates),
        "adam.tensors_updated": sum(weight in read for weight in state.weights),
        "adam.bytes": sum(kernel.count * access.total for kernel, _, access in updates),
        "adam.flops": sum(kernel.count * work.flops for kernel, work, _ in updates),
        "adam.sqrt": sum(kernel.count * work.transcendentals for kernel, work, _ in updates),
    }  # fmt: skip


def rule_figures(analysis: Analysis) -> Figures:
    """Figures of XLA's own analysis, in which loops run once and a library call counts -1.

    XLA adds in single precision, which `xla` does too; the others are exact.
    """
    entry = analysis.module.entry
    exact, rounded = CostAnalysis().of(entry), CostAnalysis(single_precision=True).of(entry)
    by_rule = CostAnalysis(starts="each").of(entry)
    calls = [row for row in _rows(analysis) if row[0].instruction.opcode == "custom-call"]
    products = sum(p.flops for kernel, *_ in calls for p in kernel.products)
    tables = POINTER_BYTES * sum(
        len(instruction.operands) for instruction in entry.instructions if instruction.opcode == "tuple"
    )
    added = sum(
        kernel.products[0].operands[2].bytes for kernel, *_ in calls if kernel.products and kernel.products[0].beta
    )
    multiplied = sum(access.total for kernel, _, access in calls if kernel.products) - added
    return {
        "xla_rule.flops_exact": exact.flops,
        "xla_rule.bytes_exact": by_rule.bytes - tables,
        "xla.flops": int(rounded.flops),
        "xla.transcendentals": int(rounded.transcendentals),
        "xla.bytes_accessed": int(rounded.bytes),
        "xla.bytes_accessed_out": int(rounded.written),
        "xla.optimal_seconds": -len(calls),
        "xla_dot.flops": exact.flops + len(calls) + products,
        "xla_dot.bytes_accessed": exact.bytes + len(calls) + multiplied,
        "xla_per_op.flops_sum": exact.flops,
        "xla_per_op.transcendentals_sum": exact.transcendentals,
        "xla_per_op.bytes_sum": exact.bytes - tables,
    }


def kernel_figures(analysis: Analysis) -> Figures:
    """Work and traffic of every kernel, one run of it."""
    figures_of_kernels: Figures = {}
    for kernel, work, access in _rows(analysis):
        instruction = kernel.instruction
        sides = f"operand_bytes {instruction.operand_bytes} output_bytes {instruction.shape.bytes}"
        if is_product(instruction):
            p = kernel.products[0]
            dims = f"b {p.batch} m {p.m} n {p.n} k {p.k} beta {int(p.beta)}"
            figures_of_kernels[f"kernel.{kernel.name}"] = f"{dims} flops {p.flops} {sides}"
        else:
            flops = work.flops + sum(p.flops for p in kernel.products)
            counts = f"flops {flops} transcendentals {work.transcendentals} bytes {access.total}"
            figures_of_kernels[f"kernel.{kernel.name}"] = f"{counts} {sides}"
    return figures_of_kernels
