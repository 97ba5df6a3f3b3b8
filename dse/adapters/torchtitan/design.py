"""Designs in the words of torchtitan: a `Trainer.Config` -> `Launch`, and columns -> settings.

A configuration names a model and a flavor. Built-in models have their flavors in the framework file; other flavors,
converters of number formats and layers of each stage are here.

Recent torchtitan configures a run by functions that return nested calls, such as ``Trainer.Config(...)``. The syntax
tree of such a module is followed, and never run: assignments, attributes, arithmetic, and functions of the same module.
All else becomes a `Call` that remembers its arguments.
"""

from __future__ import annotations

import ast
import operator
import re
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from functools import cache
from typing import Any, Final

from costmodel.errors import DseError, suggestion
from costmodel.formats.framework_file import launching
from costmodel.formats.input_files import data_beside
from costmodel.formats.model_file import load_model
from costmodel.training.model import ModelShape
from dse.adapters.megatron.design import batch, of_kind
from dse.launches.adapters import named_targets
from dse.launches.launch import Launch, NotExpressible, even_or_written
from dse.spaces.sections.frameworks import is_same

#: Most steps of reading a module, numbers that arithmetic may give, and dots in a line. [-]
MOST_STEPS: Final = 100_000
MOST: Final = 2**53
MOST_DOTS: Final = 5_000


@dataclass
class Call:
    """A call that is not followed: its name and arguments; attributes that are set later included."""

    name: str  #: with the module that it is imported from: "torchtitan.models.llama3.model_registry"
    arguments: dict[str, Any] = field(default_factory=dict)
    positional: list[Any] = field(default_factory=list)

    def literal(self, name: str, default: Any) -> Any:
        """An argument, or the default. Raises `DseError` for one of another kind, or one that is not followed."""
        value = self.arguments.get(name)
        text = f"{value.name}()" if isinstance(value, Call) else value
        return default if value is None else of_kind(name, text, TABLES["kinds"][type(default).__name__])

    def call(self, name: str) -> Call:
        """A section or model; one without arguments where there is none. Raises `DseError` for other values."""
        value = self.arguments.get(name) or Call(name)
        if isinstance(value, Call) and value.name.endswith(("Config", "model_registry", name)):
            return value
        raise DseError(f"{name}: expected a configuration that dse can follow")


class PythonFunctions:
    """The functions of a module, and their return values.

    Assignments, attributes that are set, arithmetic and calls of functions of the same module are followed;
    conditions and loops are not.
    """

    def __init__(self, text: str, package: str) -> None:
        try:
            if any(line.count(".") > MOST_DOTS for line in text.splitlines()):
                raise ValueError  # the parser takes time that grows with the square of a dotted name
            tree = ast.parse(text)
        except (SyntaxError, ValueError, RecursionError, MemoryError):
            raise DseError("expected a Python module") from None
        self.steps = 0
        self.names: dict[str, Any] = {}
        self.functions = {function.name: function for function in tree.body if isinstance(function, ast.FunctionDef)}
        self.imported = dict(self._imports(tree, package))
        self._run(tree.body, self.names)

    @staticmethod
    def _imports(tree: ast.Module, package: str) -> list[tuple[str, str]]:
        """Name -> where it comes from, or the class that one without fields extends; `package` is that of the file."""
        names = []
        for node in ast.walk(tree):
            if isinstance(node, ast.ImportFrom):
                module = ".".join(part for part in (package * (node.level > 0), node.module or "") if part)
                names += [(alias.asname or alias.name, f"{module}.{alias.name}") for alias in node.names]
            elif isinstance(node, ast.ClassDef) and all(isinstance(part, ast.FunctionDef) for part in node.body):
                names += [(node.name, ast.unparse(base)) for base in node.bases]
        return names

    def results(self) -> dict[str, Any]:
        """Name -> value that each function without required arguments returns.

        Raises `DseError` if they call each other without end.
        """
        plain = [called for called in self.functions.values() if not (called.args.args or called.args.kwonlyargs)]
        try:
            return {called.name: self._called(called, {}) for called in plain}
        except RecursionError:
            raise DseError("functions that call each other without end") from None

    def _called(self, function: ast.FunctionDef, given: Mapping[str, Any]) -> Any:
        """The value that a function returns for some arguments."""
        parameters = function.args
        defaults = [*zip(reversed(parameters.args), reversed(parameters.defaults), strict=False)]
        keywords = zip(parameters.kwonlyargs, parameters.kw_defaults, strict=True)
        defaults += [(name, value) for name, value in keywords if value]
        names = {name.arg: self.value(value, self.names) for name, value in defaults}
        return self._run(function.body, {**self.names, **names, **given})

    def _run(self, body: list[ast.stmt], names: dict[str, Any]) -> Any:
        """Statements one after the other, up to a `return`."""
        for statement in body:
            if isinstance(statement, ast.Return):
                return None if statement.value is None else self.value(statement.value, names)
            if isinstance(statement, ast.Assign | ast.AnnAssign) and statement.value is not None:
                targets = statement.targets if isinstance(statement, ast.Assign) else [statement.target]
                value = self.value(statement.value, names)
                for target in targets:
                    self._assign(target, value, names)
        return None

    def _assign(self, target: ast.expr, value: Any, names: dict[str, Any]) -> None:
        if isinstance(target, ast.Name):
            names[target.id] = value
        elif isinstance(target, ast.Attribute):
            owner = self.value(target.value, names)
            if isinstance(owner, Call):
                owner.arguments[target.attr] = value

    def value(self, node: ast.expr, names: Mapping[str, Any]) -> Any:
        """An expression: a number, a text, a list, a mapping; a `Call` for any other.

        Raises `DseError` if reading takes too long.
        """
        self.steps += 1
        if self.steps > MOST_STEPS:
            raise DseError(f"takes more than {MOST_STEPS:,} steps to read")
        if isinstance(node, ast.Constant):
            return node.value
        if isinstance(node, ast.List | ast.Tuple):
            return [self.value(item, names) for item in node.elts]
        if isinstance(node, ast.Name):
            return names[node.id] if node.id in names else Call(self.imported.get(node.id, node.id))
        if isinstance(node, ast.Attribute):
            owner = self.value(node.value, names)
            if not isinstance(owner, Call):
                return Call("")
            return owner.arguments.setdefault(node.attr, Call(f"{owner.name}.{node.attr}"))
        if isinstance(node, ast.BinOp | ast.UnaryOp):
            return self._number(node, names)
        return self._call(node, names) if isinstance(node, ast.Call) else Call("")

    def _call(self, node: ast.Call, names: Mapping[str, Any]) -> Any:
        positional = [self.value(argument, names) for argument in node.args]
        arguments = {argument.arg: self.value(argument.value, names) for argument in node.keywords if argument.arg}
        if isinstance(node.func, ast.Name) and (function := self.functions.get(node.func.id)):
            named = dict(zip((argument.arg for argument in function.args.args), positional, strict=False))
            return self._called(function, {**named, **arguments})
        callee = self.value(node.func, names)
        return Call(callee.name if isinstance(callee, Call) else "", arguments, positional)

    def _number(self, node: ast.BinOp | ast.UnaryOp, names: Mapping[str, Any]) -> Any:
        """Sums, differences and products of numbers."""
        if isinstance(node, ast.UnaryOp):
            value = self.value(node.operand, names)
            negated = isinstance(node.op, ast.USub) and isinstance(value, int | float)
            return -value if negated else Call("")
        one, other = self.value(node.left, names), self.value(node.right, names)
        if not all(isinstance(number, int | float) and abs(number) <= MOST for number in (one, other)):
            return Call("")
        if isinstance(node.op, ast.FloorDiv):
            return one // other if other else Call("")
        known = {ast.Add: operator.add, ast.Sub: operator.sub, ast.Mult: operator.mul}
        return known[type(node.op)](one, other) if type(node.op) in known else Call("")


#: Tables of `tables.yaml`, which describes each.
TABLES: Final[Mapping[str, Any]] = data_beside(__file__, "tables.yaml")
#: Capabilities of torchtitan, and their names.
TORCHTITAN: Final = launching("torchtitan")
#: Name and flavor in torchtitan -> built-in model, and fields that differ.
MODELS: Final[Mapping[tuple[str, str], tuple[str, Mapping[str, Any]]]] = {
    **{(names[0], names[1]): (model, {}) for model, names in TORCHTITAN.models.items()},
    **{(package, name): tuple(row) for package, rows in TABLES["variants"].items() for name, row in rows.items()},
}
#: Endings of flavors that choose a kernel of attention, not another model.
_KERNELS: Final = re.compile(r"_(flex|varlen|sdpa|flex_attn|varlen_attn)$")


def flavored(name: str, flavor: str) -> ModelShape | None:
    """The model of a name and flavor of torchtitan, its text part; None where there is none here."""
    for wanted in ((name, flavor), (name, _KERNELS.sub("", flavor))):
        if wanted in MODELS:
            model_name, changes = MODELS[wanted]
            model = load_model(model_name)
            assert isinstance(model, ModelShape)
            title = f"{name} {flavor}"
            named: dict[str, Any] = {"name": re.sub(r"\W", "_", title).lower(), "title": title}
            return replace(model, **changes, **(named if changes else {}))
    return None


def layers_of_chunks(parallel: Call, layers: int, stages: int, *, several: bool) -> list[int]:
    """Layers of each chunk of a pipeline, by the layers of a chunk, or the schedule.

    Raises `DseError` if they do not share out over the stages.
    """
    first, last = (parallel.literal(f"pipeline_parallel_{end}_stage_less_layers", 1) for end in ("first", "last"))
    chunk_layers = parallel.literal("pipeline_parallel_layers_per_stage", 0)
    total = layers + first + last
    chunks = -(-total // chunk_layers) if chunk_layers else stages * (2 if several else 1)
    sizes = stage_sizes(chunks, layers, first, last)
    if len(sizes) % stages:
        raise DseError(f"{len(sizes)} chunks: expected a multiple of pipeline_parallel_degree = {stages}")
    return sizes


def stage_sizes(chunks: int, layers: int, first: int, last: int) -> list[int]:
    """Layers of each chunk; embedding and output count as `first` and `last`: ``generate_llm_fqn_per_model_part``.

    Raises `DseError` if a chunk would have none.

    >>> stage_sizes(4, 48, 1, 1)
    [12, 13, 12, 11]
    """
    even, more = divmod(layers + first + last, max(chunks, 1))
    if not max(first, last, 1) <= even or chunks < 1:
        raise DseError(f"{layers} layers: too few for {chunks} chunks")
    sizes = [even + (chunk < more) for chunk in range(chunks)]
    sizes[0] -= first
    sizes[-1] -= last
    return sizes


def launch_of(config: Call, chips: int | None = None) -> Launch:
    """The run that a `Trainer.Config` describes.

    Raises `DseError` if it says too little or names something unknown; an error of Python if values are of other kinds.
    """
    for section, name, words in TABLES["words"]:
        of_kind(name, config.call(section).literal(name, words[7:].split(",")[0]), words)
    parallel, training = config.call("parallelism"), config.call("training")
    model, seq_len = _read_model(config.call("model_spec")), training.literal("max_context_length", 2048)
    tokens = training.literal("num_tokens_per_microbatch_per_dp_rank", 16384)
    step = training.literal("num_tokens_per_train_step", -1)
    if seq_len < 1 or tokens % seq_len or (step > 0 and step % seq_len):
        raise DseError(
            f"num_tokens_per_microbatch_per_dp_rank {tokens:,}, num_tokens_per_train_step {step:,}: expected "
            f"multiples of max_context_length {seq_len:,}"
        )
    model = replace(model, seq_len=float(seq_len))
    design = _read_design(config, model) | {"micro_batch_size": tokens // seq_len}
    world_size = _world_size(parallel, design, chips)
    dp = world_size // max(design["tp"] * design["pp"] * design["cp"], 1)
    steps = parallel.literal("num_pp_microbatches", 1) if design["pp"] > 1 else 1
    total = step // seq_len if step > 0 else tokens // seq_len * steps * dp
    design |= batch({"global_batch_size": total}, design, world_size)
    return Launch.of(model, {**design, **_read_shards(parallel, design)}, 8)


def model_names(spec: Call) -> tuple[str, str]:
    """Package and flavor of a model. Raises `DseError` if it is none of torchtitan's."""
    if not spec.name.endswith(".model_registry"):
        raise DseError("model_spec: expected the result of model_registry, imported from the model's package")
    return spec.name.split(".")[-2], str((*spec.positional, spec.arguments.get("flavor", ""))[0])


def _read_model(spec: Call) -> ModelShape:
    name, flavor = model_names(spec)
    model = flavored(name, flavor)
    if model is None:
        raise DseError(f"model {name} {flavor}: not known{suggestion(f'{name} {flavor}', map(' '.join, MODELS))}")
    return replace(model, mtp_layers=float(spec.literal("num_mtp_layers", 0)))


def _world_size(parallel: Call, design: Mapping[str, Any], chips: int | None) -> int:
    shard = parallel.literal("data_parallel_shard_degree", -1)
    if shard < 1 and not chips:
        raise DseError("does not say on how many chips; name them with --gpus N")
    group = parallel.literal("data_parallel_replicate_degree", 1) * design["tp"] * design["pp"] * design["cp"]
    size = group * (shard if shard > 0 else max((chips or 0) // max(group, 1), 1))
    if chips not in (None, size):
        raise DseError(f"data_parallel_shard_degree {shard}: all degrees multiply to {size:,}, not {chips:,} chips")
    return int(size)


def _read_shards(parallel: Call, design: Mapping[str, Any]) -> dict[str, Any]:
    """Stage of sharded data parallelism."""
    replicas = parallel.literal("data_parallel_replicate_degree", 1)
    if replicas >= design["dp"] > 1 and design["cp"] == 1:
        return {"zero": 0}
    word = parallel.literal("fsdp_reshard_after_forward", "default")
    kept = word == "never" or (word == "default" and design["pp"] > 1)
    return {"zero": 3, "reshard_after_forward": not kept, "shard_replicas": replicas}


def _read_design(config: Call, model: ModelShape) -> dict[str, Any]:
    """Columns that settings decide, those of replicas and the batch aside."""
    parallel, spec = config.call("parallelism"), config.call("model_spec")
    degrees = {"tp": "tensor", "cp": "context", "pp": "pipeline"}
    design: dict[str, Any] = {
        column: parallel.literal(f"{word}_parallel_degree", 1) for column, word in degrees.items()
    }
    design |= {"overlap_grad_reduce": True, "vpp": 1, "attention": "flash_attention_2"}
    design |= {name: TORCHTITAN.given[name] for name in TABLES["of_software"]}
    eager = config.call("training").literal("disable_cuda_graphs", False)
    design["cuda_graphs"] = "none" if eager else "full_iteration"
    if design["pp"] > 1:
        design |= _read_schedule(parallel, design, model)
    if design["tp"] > 1:
        design["sharding"] = "megatron_sp" if parallel.literal("enable_sequence_parallel", True) else "megatron"
        overlapped = config.call("compile").literal("enable_async_tensor_parallel", False)
        design["tp_overlap"] = "chunked" if overlapped else "gradients"
    if design["cp"] > 1:
        rotate = parallel.literal("context_parallel_rotate_method", "allgather")
        design["cp_communication"] = TORCHTITAN.value("cp_communication", rotate, "all_gather")
    if model.num_experts:
        ep = parallel.literal("expert_parallel_degree", 1)
        backend = spec.literal("moe_comm_backend", "standard")
        etp = parallel.literal("expert_tensor_parallel_degree", 1) if ep > 1 else design["tp"]
        design |= {"ep": ep, "etp": etp, "dispatcher": "all_to_all"}
        if ep > 1:
            design["dispatcher"] = TORCHTITAN.value("dispatcher", backend, "two_hop")
    if config.call("training").literal("enable_cpu_offload", False):
        design["offload_optimizer"] = 1
    mode = recomputing(config)
    design["recompute"] = mode if mode in TORCHTITAN.runs["recompute"].words else "full"
    precisions = [word for name, word in TABLES["converters"].items() if name in converters(config)]
    return design | ({"precision": precisions[-1]} if precisions else {}) | read_adapters(config)


def read_adapters(config: Call) -> dict[str, Any]:
    """Columns of adapters."""
    known, columns = TORCHTITAN.runs["lora_targets"].words, dict[str, Any]()
    for converter in listed_converters(config, "LoRAConverter"):
        modules = converter.literal("target_modules", []) or known["all_linear"]
        targets = named_targets([*map(str, modules)], known, "LoRAConverter: target_modules")
        columns = {"lora_rank": converter.literal("rank", 8), "lora_targets": targets, "lora_fused": False}
    return columns


def listed_converters(config: Call, ending: str = "") -> list[Call]:
    """Converters of a model's layers, of the classes with an ending."""
    listed = config.call("model_spec").arguments.get("converters") or ()
    return [converter for converter in listed if converter.name.removesuffix(".Config").endswith(ending)]


def is_of_layers(converter: Call) -> bool:
    """True if a converter of linear layers is of all layers, and not of the head. False if that cannot be followed."""
    names, left = (converter.arguments.get(name) or [] for name in ("fqns", "filter_fqns"))
    if not (isinstance(names, list) and isinstance(left, list)):
        return False
    return "layers" in names or {"attention", "feed_forward"} <= {*names} or {*left} - {"router.gate"} == {"lm_head"}


def _read_schedule(parallel: Call, design: Mapping[str, Any], model: ModelShape) -> dict[str, Any]:
    """Schedule of the pipeline, and its chunks: by their modules, or by layers of each."""
    word = parallel.literal("pipeline_parallel_schedule", "1F1B")
    known = {
        title: (name, chunks > 0)
        for name, pair in TORCHTITAN.runs["schedule"].words.items()
        for chunks, title in enumerate(pair)
        if title
    }
    word = {title.lower(): title for title in known}.get(str(word).lower().replace("_", ""), word)
    if word not in known:
        raise DseError(f"pipeline_parallel_schedule: {word!r}: not known{suggestion(str(word), known)}")
    schedule, several = known[word]
    schedule = "gpipe" if word == "GPipe" else schedule
    parts = parallel.literal("module_fqns_per_model_part", [])
    less = {column: parallel.literal(setting, 0) for column, setting in TABLES["less_layers"].items()}
    if parts:
        sizes = [sum(str(name).startswith("layers.") for name in part) for part in parts]
        counted = {"vpp": len(sizes) // design["pp"], **{column: count > 0 for column, count in less.items()}}
        staged = {"pp": design["pp"], "schedule": schedule}
        if Launch.of(model, {**staged, **counted}, 1).chunks() == sizes:
            return {"schedule": schedule, **counted}
    else:
        sizes = layers_of_chunks(parallel, int(model.num_layers), design["pp"], several=several)
    layout = f"E{'|'.join('t' * size for size in sizes)}L"
    return {"schedule": schedule, **even_or_written(model, {**design, "schedule": schedule}, layout)}


def recomputing(config: Call) -> str:
    """Policy of activation checkpointing: selective, full, memory_budget or none."""
    policy = config.arguments.get("activation_checkpoint", Call("SelectiveAC.Config"))
    if not policy:
        return "none"
    return str(TABLES["policies"].get(policy.name.removesuffix(".Config").rpartition(".")[2], "selective"))


def converters(config: Call) -> list[str]:
    """Classes that convert linear layers to other formats, such as `Float8LinearConverter`."""
    names = [converter.name.removesuffix(".Config").rpartition(".")[2] for converter in listed_converters(config)]
    return [name for name in names if "Experts" not in name and name != "LoRAConverter"]


def unread(config: Call) -> list[str]:
    """Settings that are read as something else."""
    notes, mode, names = [], recomputing(config), converters(config)
    for section, setting, default, read in TABLES["read_as"]:
        if (value := config.call(section).arguments.get(setting, default)) != read:
            notes.append(f"{section}.{setting} {getattr(value, 'name', value)} is read as {read}")
    optimizer = getattr(config.arguments.get("optimizer"), "name", "default_adamw")
    if not optimizer.endswith("default_adamw"):
        notes.append(f"optimizer {optimizer} is read as default_adamw")
    name, flavor = model_names(config.call("model_spec"))
    if flavor in TABLES["with_vision"].get(name, ()):
        notes.append(f"model {name} {flavor}: its vision encoder is not read")
    if any("target_modules" not in converter.arguments for converter in listed_converters(config, "LoRAConverter")):
        notes.append("LoRAConverter without target_modules: its adapter beside the output matrix is not read")
    if any(converter.literal("recipe_name", "rowwise") != "rowwise" for converter in listed_converters(config)):
        notes.append("Float8LinearConverter: recipe_name rowwise_with_gw_hp is read as rowwise")
    if not all(map(is_of_layers, listed_converters(config, "LinearConverter"))):
        notes.append("converters: other fqns or filter_fqns are read as all linear layers but the head")
    if read := {"selective": "that of attention alone", "memory_budget": "full"}.get(mode):
        notes.append(f"activation_checkpoint.mode {mode} is read as {read}")
    if others := [name for name in names if name not in TABLES["converters"]]:
        notes.append(f"model.converters {', '.join(others)}: not read")
    return notes


@cache
def flavor_of(model: ModelShape) -> tuple[str, str]:
    """Name and flavor of a model there. Raises `NotExpressible` if there is none."""
    for names in MODELS:
        if names[1] not in TABLES["with_vision"].get(names[0], ()) and is_same(flavored(*names), model):
            return names
    raise NotExpressible(f"model {model.name}: not in {TORCHTITAN.release}, which has {', '.join(TORCHTITAN.models)}")


def degrees(launch: Launch) -> dict[str, Any]:
    """Sizes of groups, and whether weights are sharded again after the forward pass."""
    copies = int(launch["shard_replicas"]) if launch.zero_stage else int(launch["dp"])
    return {
        "data_parallel_replicate_degree": copies,
        "data_parallel_shard_degree": int(launch["dp"]) // copies,
        "fsdp_reshard_after_forward": "always" if launch["reshard_after_forward"] else "never",
        "tensor_parallel_degree": int(launch["tp"]),
        "context_parallel_degree": int(launch["cp"]),
    }


def stages(launch: Launch) -> dict[str, Any]:
    """Stages of the pipeline, with their modules by name."""
    sizes, first, parts = launch.chunks(), 0, []
    for size in sizes:
        parts.append([f"layers.{layer}" for layer in range(first, first + size)])
        first += size
    parts[0].insert(0, "tok_embeddings")
    parts[-1] += ["norm", "lm_head"]
    return {
        **{setting: int(launch[column]) for column, setting in TABLES["less_layers"].items()},
        "pipeline_parallel_degree": int(launch["pp"]),
        "pipeline_parallel_schedule": TORCHTITAN.word("schedule", launch["schedule"])[launch["vpp"] > 1],
        "module_fqns_per_model_part": parts,
    }
