"""Gives launch files to the programs that read them, without GPUs: a line for each that is refused.

    python accepting_programs.py torchtitan CHECKOUT FILE.py...
    python accepting_programs.py maxtext CHECKOUT FILE.yml...
    python accepting_programs.py megatron_bridge BRIDGE:MEGATRON_LM FILE.yaml...

The Python has what the program needs: torch, tyro, spmd_types, grain, datasets; flax; or torch and omegaconf.
"""

import importlib.abc
import importlib.machinery
import math
import os
import re
import sys
import types
from pathlib import Path

import yaml

FILLED = {"DATA_PATH": "c4", "TOKENIZER_MODEL": "/tmp", "CHECKPOINT_DIR": "/tmp/checkpoints",
          "LEARNING_RATE": "1e-4", "TRAIN_STEPS": "1000"}  # fmt: skip
#: Packages that configurations import, and ask nothing of.
ABSENT = (
    *("transformer_engine", "transformer_engine_torch", "modelopt", "mamba_ssm", "causal_conv1d", "fla"),
    *("flash_attn", "wandb", "multi_storage_client", "nvdlfw_inspect", "flash_mla", "deep_ep", "diffusers"),
    *("qwen_vl_utils", "timm", "open_clip", "mlflow", "nemo_run", "comet_ml", "peft", "torchvision", "av"),
    *("decord", "soundfile", "librosa", "imageio", "webdataset", "megatron.energon"),
    *("megatron.bridge.diffusion", "megatron.bridge.data.energon", "pathwaysutils"),
)


class Kind(type):
    def __getattr__(cls, name):
        if name.startswith("__"):
            raise AttributeError(name)
        return anything(cls, name)


def anything(owner, name):
    made = Kind(name, (), {"__init__": lambda self, *_, **__: None})
    setattr(owner, name, made)
    return made


class Absent(types.ModuleType):
    __path__ = []  # noqa: RUF012  (as of any package)
    __version__ = "9.9.9"
    __getattr__ = Kind.__getattr__


class Finder(importlib.abc.MetaPathFinder, importlib.abc.Loader):
    def find_spec(self, name, path=None, target=None):
        if any(name == absent or name.startswith(f"{absent}.") for absent in ABSENT):
            return importlib.machinery.ModuleSpec(name, self, is_package=True)
        return None

    def create_module(self, spec):
        return Absent(spec.name)

    def exec_module(self, module):
        pass


def chips_of(text):
    nodes, per_node = re.search(r"--nnodes (\d+) --nproc[-_]per[-_]node (\d+)", text).groups()
    return int(nodes) * int(per_node)


def torchtitan(checkout):
    """`ConfigManager`, the mesh, and what the trainer asks before it builds the model."""
    sys.path.insert(0, checkout)
    from torchtitan.components.quantization import float8, mx, nvfp4
    from torchtitan.config.manager import ConfigManager
    from torchtitan.distributed import ParallelDims

    for formats in (float8, mx, nvfp4):
        formats.has_cuda_capability = lambda *_: True
    os.environ.update(FILLED)

    def accept(path, text):
        sys.path.insert(0, str(path.parent))
        function = re.search(r"^def (\w+)\(\)", text, re.MULTILINE)[1]
        config = ConfigManager().parse_args(["--module", path.stem, "--config", function])
        dims = ParallelDims.from_config(config.parallelism, chips_of(text))
        training = config.training
        tokens = training.num_tokens_per_microbatch_per_dp_rank
        assert tokens % (dims.tp * (2 * dims.cp if dims.cp > 1 else 1)) == 0
        per_step = tokens * dims.dp_shard * dims.dp_replicate
        per_step *= config.parallelism.num_pp_microbatches if dims.pp > 1 else 1
        assert training.num_tokens_per_train_step % per_step == 0
        config.model_spec.model.update_from_config(config=config)

    return accept


def maxtext(checkout):
    """`MaxTextConfig`, on base.yml."""
    sys.path.insert(0, f"{checkout}/src")
    sys.meta_path.insert(0, Finder())
    from maxtext.configs.types import MaxTextConfig
    from maxtext.utils import max_utils

    base = yaml.safe_load(Path(f"{checkout}/src/maxtext/configs/base.yml").read_text())
    known = {*MaxTextConfig.model_fields}
    usual = {name: None if value == "None" else value for name, value in base.items() if name in known}

    def accept(path, text):
        given = yaml.safe_load(text) | {"learning_rate": 1e-4, "steps": 1000}
        del given["base_config"]
        sizes = {axis: math.prod(v for name, v in given.items() if name.startswith(axis)) for axis in ("ici_", "dcn_")}
        given |= {"internal_compile": True, "internal_compile_num_devices": sizes["ici_"] * sizes["dcn_"]}
        max_utils.get_num_slices = lambda _: sizes["dcn_"]
        assert given.keys() <= known, given.keys() - known
        MaxTextConfig(**usual | given)

    return accept


def megatron_bridge(checkouts):
    """A recipe with the file's overrides, and `validate`, as an H100 or a B200 would have it."""
    import typing

    import torch

    bridge, megatron = checkouts.split(":")
    sys.path[:0] = [megatron, f"{bridge}/src"]
    sys.meta_path.insert(0, Finder())
    typing.override = getattr(typing, "override", lambda function: function)
    import megatron.core.models.common.embeddings.rope_utils as rope
    import megatron.core.optimizer.optimizer_config as optimizer
    import megatron.core.transformer.transformer_config as transformer
    from megatron.bridge.models import gemma, mla_provider
    from megatron.bridge.recipes.gpt.vanilla_gpt import vanilla_gpt_pretrain_config
    from megatron.bridge.training.config import runtime_config_update
    from megatron.bridge.training.utils.omegaconf_utils import process_config_with_overrides

    for module in (optimizer, transformer):
        module.is_te_min_version = lambda *_, **__: True
    for module in (rope, transformer):
        module.fused_apply_rotary_pos_emb = lambda *_: 0
    chip = types.SimpleNamespace(major=10, minor=0, name="NVIDIA B200", total_memory=180 << 30)
    torch.cuda.is_available, torch.cuda.device_count = lambda: True, lambda: 8
    torch.cuda.current_device = lambda: 0
    torch.cuda.get_device_capability = lambda *_: (10, 0)
    torch.cuda.get_device_properties = lambda *_: chip

    def accept(path, text):
        os.environ.update(WORLD_SIZE=str(chips_of(text)), RANK="0", LOCAL_RANK="0")
        for name, value in FILLED.items():
            text = re.sub(rf"(: |- ){name}$", rf"\g<1>{value}", text, flags=re.MULTILINE)
        filled = path.with_suffix(".filled.yaml")
        filled.write_text(text)
        config = vanilla_gpt_pretrain_config()
        if named := re.search(r"with ((?:MLA|Gemma\d)ModelProvider) as its model", text):
            config.model = (vars(gemma) | vars(mla_provider))[named[1]]()
        process_config_with_overrides(config, config_filepath=str(filled))
        for name, part in yaml.safe_load(text).items():
            section = getattr(config, name)
            assert all(hasattr(section, key) for key in part if key != "_target_"), (name, part)
        runtime_config_update(config)

    return accept


if __name__ == "__main__":
    accept, files = globals()[sys.argv[1]](sys.argv[2]), [Path(path) for path in sys.argv[3:]]
    good = 0
    for file in files:
        try:
            accept(file, file.read_text())
            good += 1
        except Exception as error:
            print(f"{file.name}: {type(error).__name__} {' '.join(str(error).split())[:300]}")
    print(f"{good} of {len(files)} accepted")
