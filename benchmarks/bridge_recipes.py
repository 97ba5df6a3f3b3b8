"""Recipes of Megatron-Bridge, which are Python, as its YAML configurations.

    python -m benchmarks.bridge_recipes Megatron-Bridge recipes
    python -m benchmarks.recipes recipes/gb200 --system gb200

The recipes of a checkout are called, so use one that you trust. Neither PyTorch nor Megatron-LM is needed: what recipes
import from elsewhere is an object that keeps its arguments. A recipe names its model on the Hugging Face Hub and its
GPUs (``llama3_70b_pretrain_64gpu_gb200_bf16_config``); dimensions are those of the built-in model.
"""

import argparse
import importlib
import importlib.abc
import importlib.util
import re
import sys
from collections import Counter
from collections.abc import Iterator
from importlib.machinery import ModuleSpec
from pathlib import Path
from types import FunctionType, ModuleType
from typing import Any, Final

from costmodel import DseError, load_model
from costmodel.formats.input_files import dump, parse
from costmodel.formats.shipped import current_name, names
from dse.adapters.megatron_bridge.launch import NAMES, RECIPES, script
from dse.launches.launch import Launch

PACKAGE: Final = "megatron.bridge."
#: Packages that recipes import, and that need not be installed.
OTHERS: Final = ("megatron", "torch", "transformers", "datasets", "modelopt", "nemo_run")
#: Model, GPUs and kind of GPU in the name of a recipe.
NAME: Final = re.compile(r"\w+_(?:pretrain|sft|peft)_(?P<gpus>\d+)gpu_(?P<chip>[a-z0-9]+)_\w+_config")
#: Settings of a model that are 1 unless a recipe states them.
SIZES: Final = tuple(f"{kind}_parallel_size" for kind in ("tensor_model", "pipeline_model", "context", "expert_model"))
#: GPUs that one host starts, by kind.
OF_HOST: Final = {"gb200": 4, "gb300": 4, "vr200": 4}


class Record:
    """An object of a package that is not installed: its arguments as attributes; others are None."""

    def __init__(self, made_by: str = "", *arguments: Any, **given: Any) -> None:
        self.__dict__ |= {"_made_by": made_by, "_arguments": arguments, **given}

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        if self._made_by.endswith(".ConfigContainer"):
            self.__dict__[name] = Record()  # a section that the recipe adds to
        return self.__dict__.get(name)

    def fields(self) -> dict[str, Any]:
        """Attributes that were given, as YAML has them."""
        return {
            name: plain(value)
            for name, value in self.__dict__.items()
            if not name.startswith("_") and value is not None and isinstance(value, PLAIN)
        }


class Name:
    """A name of such a package: a class, a function or a constant."""

    def __init__(self, path: str) -> None:
        self.path = path

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        return Name(f"{self.path}.{name}")

    def __call__(self, *arguments: Any, **given: Any) -> Any:
        if self.path.endswith(".from_hf_pretrained"):
            return Name(f"hub:{arguments[0]}:")
        if arguments and isinstance(arguments[0], FunctionType):
            return arguments[0]  # a decorator
        if self.path.endswith(".get_mixed_precision_config"):
            return Record(f".{arguments[0].replace('-', '_')}") if isinstance(arguments[0], str) else arguments[0]
        hub = re.match(r"hub:(.*):", self.path)
        sizes: dict[str, Any] = {**dict.fromkeys(SIZES, 1), "cross_entropy_loss_fusion": True} if hub else {}
        if hub and (model := current_name(hub[1], "models")) in names("models"):
            sizes["vocab_size"] = int(getattr(load_model(model), "vocab_size", 0))
        return Record(self.path, *arguments, **{**sizes, **given})

    def __instancecheck__(self, other: Any) -> bool:
        return isinstance(other, Record) and other.__dict__["_made_by"] == self.path

    def __mro_entries__(self, bases: tuple[Any, ...]) -> tuple[type]:
        return (Record,)

    def __or__(self, other: Any) -> "Name":
        return self  # in annotations

    __ror__ = __getitem__ = __or__


#: Kinds of values that a configuration keeps.
PLAIN: Final = (bool, int, float, str, list, Name)


def plain(value: Any) -> Any:
    """A value as a configuration has it; names are those of Python, or the last word of an enumeration."""
    if not isinstance(value, Name):
        return value
    *_, kind, word = value.path.split(".")
    return word if kind == "AttnBackend" else {"_target_": value.path, "_call_": False}


def with_dispatcher(model: Record, moe_flex_dispatcher_backend: str | None = None) -> None:
    """Let a model send tokens by DeepEP or HybridEP, as `flex_dispatcher_backend.py` of Megatron-Bridge does."""
    if (name := moe_flex_dispatcher_backend) in ("deepep", "hybridep"):
        settings = {"moe_token_dispatcher_type": "flex", "moe_flex_dispatcher_backend": name}
        model.__dict__ |= {**settings, "moe_shared_expert_overlap": False}


class Absent(ModuleType):
    """A module that is not installed, with every name."""

    __path__: list[str] = []  # noqa: RUF012  (the name and type that Python wants)

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        return with_dispatcher if name == "apply_flex_dispatcher_backend" else Name(f"{self.__name__}.{name}")


class Checkout(importlib.abc.MetaPathFinder, importlib.abc.Loader):
    """Finds recipes in a checkout, and modules with every name for other packages."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def find_spec(self, name: str, path: Any = None, target: Any = None) -> ModuleSpec | None:
        """The module of a recipe, or an absent one."""
        if re.match(rf"{PACKAGE}(perf_)?recipes\b", name):
            place = self.folder.joinpath(*name.removeprefix(PACKAGE).split("."))
            for file, folders in ((place.with_suffix(".py"), None), (place / "__init__.py", [str(place)])):
                if file.is_file():
                    return importlib.util.spec_from_file_location(name, file, submodule_search_locations=folders)
        return ModuleSpec(name, self, is_package=True) if name.split(".")[0] in OTHERS else None

    def create_module(self, spec: ModuleSpec) -> ModuleType:
        """An absent module."""
        return Absent(spec.name)

    def exec_module(self, module: ModuleType) -> None:
        """Nothing: an absent module has every name."""


def recipes(folder: Path) -> Iterator[tuple[re.Match[str], FunctionType]]:
    """Names of recipes in the folder of the package, and their functions."""
    for file in sorted(folder.glob("*recipes/**/*.py")):
        if file.name != "__init__.py":
            name = PACKAGE + ".".join(file.relative_to(folder).with_suffix("").parts)
            module = importlib.import_module(name)
            for key, value in vars(module).items():
                if isinstance(value, FunctionType) and value.__module__ == name and (parts := NAME.fullmatch(key)):
                    yield parts, value


def configuration(name: re.Match[str], recipe: Record) -> str:
    """The YAML configuration of a recipe.

    Raises `DseError` if its model is not built in, or has layers that Megatron-Bridge does not describe in YAML.
    """
    made_by = getattr(recipe.model, "_made_by", "")
    hub = re.match(r"hub:(.*):", made_by)
    model = current_name(hub[1], "models") if hub else ""
    if model in names("models"):
        text, _ = script(Launch.of(load_model(model), {}, 8))
        content = parse(text, name[0]).data
    elif made_by.endswith("Provider"):  # which states its dimensions
        content = {"model": {"_target_": made_by}}
    else:
        raise DseError(f"model {hub[1] if hub else 'unknown'}: not built in")
    packed = [key for key in NAMES["packing"] if getattr(recipe.dataset, key)]
    content["dataset"] = dict.fromkeys(packed, True)
    for section in ("model", "train", "ddp", "optimizer", "dist", "comm_overlap", "tokenizer"):
        given = getattr(recipe, section)
        content[section] = {**content.get(section, {}), **(given.fields() if given else {})}
    if isinstance(recipe.peft, Record):
        content["peft"] = {"_target_": recipe.peft.__dict__["_made_by"], **recipe.peft.fields()}
    precision = recipe.mixed_precision
    changes = precision.fields() if isinstance(precision, Record) else {}
    kind = precision._made_by.rpartition(".")[2] if isinstance(precision, Record) else f"{precision}".replace("-", "_")
    content["mixed_precision"] = {**RECIPES.get(kind, {}), **changes}
    gpus, of_host = int(name["gpus"]), OF_HOST.get(name["chip"], 8)
    nodes = max(1, gpus // of_host)
    return f"# torchrun --nnodes {nodes} --nproc-per-node {gpus // nodes}\n" + dump(content)


def main() -> None:
    """Write the configurations of a checkout, in a folder for each kind of GPU."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("checkout", type=Path)
    parser.add_argument("folder", type=Path, help="where the configurations go")
    args = parser.parse_args()
    package = args.checkout / "src" / "megatron" / "bridge"
    sys.meta_path.insert(0, Checkout(package))
    counts: Counter[str] = Counter()
    for name, recipe in recipes(package):
        try:
            text = configuration(name, recipe())
        except Exception as error:  # of the recipe, which is code of another project
            counts["not written"] += 1
            print(f"{name[0]}: not written: {error}")
            continue
        folder = args.folder / name["chip"]
        folder.mkdir(parents=True, exist_ok=True)
        (folder / f"{name[0].removesuffix('_config')}.yaml").write_text(text)
        counts["written"] += 1
    print(", ".join(f"{word} {count}" for word, count in counts.most_common()))


if __name__ == "__main__":
    main()
