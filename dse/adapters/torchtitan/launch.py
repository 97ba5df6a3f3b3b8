"""Configurations of torchtitan in Python: written from designs, and read.

Releases up to 0.2.2 were configured by TOML files, which are refused by name.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path
from textwrap import indent
from typing import Any, Final

from costmodel.errors import DseError, suggestion
from dse.adapters.torchtitan import design as torchtitan_design
from dse.adapters.torchtitan.design import TABLES, TORCHTITAN, Call, PythonFunctions
from dse.launches.adapters import ADAPTER_PLACEHOLDERS
from dse.launches.launch import PLACEHOLDERS, Launch, NotExpressible, launch_text, path_and_part, refuse, with_line

#: Where the classes are that some designs need alone.
CLASSES: Final = {
    "components.quantization": tuple(name for names in TORCHTITAN.runs["precision"].words.values() for name in names),
    **TABLES["classes"],
}


class Code(str):
    """Text that is written into a module unchanged."""

    __slots__ = ()


def script(launch: Launch) -> tuple[str, list[str]]:
    """The module of a design, and the settings that it leaves out.

    Raises `NotExpressible` if torchtitan cannot run such a design.
    """
    package, flavor = torchtitan_design.flavor_of(launch.model)
    refuse(launch, "torchtitan")
    if launch.model.tied_embeddings and launch["pp"] > 1:
        raise NotExpressible(f"pp={launch['pp']}: torchtitan has no stages of a model with tied embeddings")
    predicts = launch.model.mtp_layers > 0 and launch["pp"] * launch["cp"] == 1
    lost = launch.lost(TABLES["lost"])
    lost += [f"model: mtp_layers={launch.model.mtp_layers:g}"] if launch.model.mtp_layers and not predicts else []
    name = re.sub(r"\W", "_", launch.model.name)
    body = _call("Trainer.Config", _sections(launch, predicts=predicts))
    spec = _call("model_registry", _registry(launch, flavor, predicts=predicts))
    lines = [
        f"# {launch.heading} on {launch.world_size:,} chips, for {TORCHTITAN.release}:",
        f"# PYTORCH_ALLOC_CONF=expandable_segments:True {launch.torchrun} "
        f"-m torchtitan.train --module THIS_MODULE --config {name}",
        *(f"# torchtitan has no setting for: {text}" for text in lost),
        "# What the design does not decide, as variables of the environment:",
        *(f"#   {variable}: {text}" for variable, text in {**PLACEHOLDERS, **TABLES["environment"]}.items()),
        *(f"#   {variable}: {text}" for variable, text in ADAPTER_PLACEHOLDERS.items() if launch["lora_rank"]),
        *_import_lines(package, spec + body),
        "",
        "",
        f"def {name}() -> Trainer.Config:",
        indent(f"model_spec = {spec}\nreturn {body}", "    "),
    ]
    return "\n".join(lines) + "\n", lost


def _import_lines(package: str, text: str) -> list[str]:
    """Imports for the names in a text."""
    modules = dict(TABLES["imports"])
    for module, names in CLASSES.items():
        if used := [name for name in names if re.search(rf"\b{name}\b", text)]:
            modules[module] = ", ".join(sorted(used))
    modules[f"models.{package}"] = "model_registry"
    return [
        "from os import environ",
        "",
        *(f"from torchtitan.{module} import {names}" for module, names in sorted(modules.items())),
    ]


def _registry(launch: Launch, flavor: str, *, predicts: bool) -> dict[str, Any]:
    """Arguments of `model_registry`, which makes the model."""
    arguments: dict[str, Any] = {"flavor": flavor, "attn_backend": "flex"}
    if launch.model.num_experts and launch["ep"] > 1:
        arguments["moe_comm_backend"] = TORCHTITAN.word("dispatcher", launch["dispatcher"])
    if predicts:
        arguments["num_mtp_layers"] = int(launch.model.mtp_layers)
    converters = [
        name
        for name in TORCHTITAN.word("precision", launch["precision"])
        if launch.model.num_experts or "Experts" not in name
    ]
    shared = {"model_compile_enabled": True}
    calls = [Code(_call(f"{name}.Config", {**shared, **TABLES["converted"].get(name, {})})) for name in converters]
    if rank := int(launch["lora_rank"]):
        modules = TORCHTITAN.word("lora_targets", launch["lora_targets"])
        scale = Code('float(environ["LORA_ALPHA"])')
        calls.append(Code(_call("LoRAConverter.Config", {"rank": rank, "alpha": scale, "target_modules": modules})))
    return {**arguments, "converters": calls} if calls else arguments


def _sections(launch: Launch, *, predicts: bool) -> dict[str, Any]:
    """Arguments of `Trainer.Config`."""
    vocabulary = {"global_vocab_size": Code("decoder_vocab_size(model_spec)")}
    cross_entropy = Code(_call("CrossEntropyLoss.Config", vocabulary))
    loss = _call("ChunkedLossWrapper.Config", {"loss_fn": cross_entropy})
    recomputing = TORCHTITAN.word("recompute", launch["recompute"])
    overlapped = launch["tp"] > 1 and launch["tp_overlap"] == "chunked"
    initial = {"initial_load_path": Code('environ["PRETRAINED_CHECKPOINT"]')} if launch["lora_rank"] else {}
    return {
        "loss": Code(_call("MTPLoss.Config", vocabulary) if predicts else loss),
        **{name: Code(text) for name, text in TABLES["filled_in"].items()},
        "training": Code(_call("TrainingConfig", _training(launch))),
        "parallelism": Code(_call("ParallelismConfig", _parallelism(launch))),
        "checkpoint": Code(_call("CheckpointManager.Config", {"folder": Code('environ["CHECKPOINT_DIR"]'), **initial})),
        "activation_checkpoint": Code(f"{recomputing}.Config()" if recomputing else "None"),
        "compile": Code(
            _call("CompileConfig", {"enable": True, **({"enable_async_tensor_parallel": True} if overlapped else {})})
        ),
    }


def _training(launch: Launch) -> dict[str, Any]:
    seq_len = int(launch.model.seq_len)
    return {
        "num_tokens_per_microbatch_per_dp_rank": int(launch["micro_batch_size"]) * seq_len,
        "num_tokens_per_train_step": launch.global_batch_size * seq_len,
        "max_context_length": seq_len,
        "steps": Code('int(environ["TRAIN_STEPS"])'),
        **({"enable_cpu_offload": True} if launch["offload_optimizer"] == 1 else {}),
        "disable_cuda_graphs": launch["cuda_graphs"] == "none",
    }


def _parallelism(launch: Launch) -> dict[str, Any]:
    arguments = torchtitan_design.degrees(launch)
    if launch["tp"] > 1:
        arguments["enable_sequence_parallel"] = launch.sequence_parallel
    if launch.model.num_experts:
        arguments["expert_parallel_degree"] = int(launch["ep"])
    if launch["pp"] > 1:
        arguments |= torchtitan_design.stages(launch)
        arguments["num_pp_microbatches"] = int(launch["gradient_accumulation_steps"])
    return arguments


def _call(name: str, arguments: Mapping[str, Any]) -> str:
    """A call, with an argument in each line where there are several."""
    texts = [f"{argument}={_text(value)}" for argument, value in arguments.items()]
    if len(texts) <= 1 and "\n" not in "".join(texts):
        return f"{name}({''.join(texts)})"
    return f"{name}(\n" + indent(",\n".join(texts), "    ") + ",\n)"


def _text(value: Any) -> str:
    """A value as Python has it."""
    if isinstance(value, Code):
        return str(value)
    if isinstance(value, list) and value and not isinstance(value[0], str):
        return "[\n" + indent(",\n".join(map(_text, value)), "    ") + ",\n]"
    if isinstance(value, list):
        return "[" + ", ".join(map(_text, value)) + "]"
    return '"' + value + '"' if isinstance(value, str) else repr(value)


def read_script(path: Path, chips: int | None = None) -> tuple[Launch, list[str]]:
    """The launch that a function of a module configures, and notes on unread settings.

    `path` is ``FILE.py``, or ``FILE.py:FUNCTION`` where several functions return a configuration.

    Raises `DseError` if it is no such module, or says too little.
    """
    file, part = path_and_part(path)
    if file.suffix == ".toml":
        raise DseError(f"{path}: TOML is of torchtitan 0.2.2 and older; dse reads Python: FILE.py:FUNCTION")
    text = launch_text(file)
    try:
        source = PythonFunctions(text, file.resolve().parent.name)
        config = _configuration(source, part)
        launch = torchtitan_design.launch_of(config, chips)
    except (DseError, ValueError, TypeError, AttributeError, ArithmeticError) as error:
        raise DseError(f"{path}: {with_line(str(error), text)}") from None
    return launch, torchtitan_design.unread(config)


def _configuration(module: PythonFunctions, part: str) -> Call:
    """The configuration that a function returns, the only one or that of a name."""
    configurations = {
        name: result
        for name, result in module.results().items()
        if isinstance(result, Call) and result.name.endswith("Trainer.Config")
    }
    if part and part not in configurations:
        raise DseError(f"no function {part} returns a Trainer.Config{suggestion(part, configurations)}")
    if not part and len(configurations) != 1:
        known = ", ".join(configurations)
        raise DseError(
            f"several configurations: name one as FILE.py:NAME, of {known}"
            if configurations
            else "expected a function without arguments that returns a Trainer.Config"
        )
    return configurations[part or next(iter(configurations))]
