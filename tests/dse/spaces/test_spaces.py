"""Rules that hold in every space, and the layouts of published runs in those that ship."""

import itertools

import pytest

from costmodel.formats import shipped
from costmodel.rules.registry import NATIVE
from dse.pricing.evaluated import rules_for
from dse.pricing.evaluation import evaluate
from dse.spaces.space import Space
from tests.support.cases import cases
from tests.support.rules import broken_rules

DEFAULTS = cases(__file__, "DEFAULTS")
DUAL, SIXTEEN_BITS = ("dualpipe", "dualpipe_v"), ("bf16", "fp16")


def whole(a: float, b: float) -> bool:
    """True if b divides a."""
    return b > 0 and (a / b).is_integer()


def cut_by(d, n):
    """True if n ranks can exchange the heads of a rank."""
    return whole(d.heads / d.tp, n) and whole(d.groups / d.tp, n)


def wide(d, n):
    """True if all widths are multiples of n."""
    return whole(d.hidden / d.tp, n) and whole(d.ffn / d.tp, n) and whole(d.moe_ffn / d.etp, n)


def told(d):
    """Stages whose number of layers is given."""
    return (d.first_stage_layers > 0) + (d.last_stage_layers > 0)


def left(d):
    """Layers of the other stages."""
    return d.layers - d.first_stage_layers - d.last_stage_layers


def counted(d):
    """Embedding and loss that count as layers."""
    return d.count_embedding + d.count_loss


#: Rule -> the same in Python, of one design.
RULES = {rule: eval(f"lambda d: {text}") for rule, text in cases(__file__, "RULES").items()}

#: What a small space has open -> model, system, given columns, parameters.
SPACES = cases(__file__, "SPACES")
WORLD, BATCH = 32, 128


def written(value):
    """A value as a space file has it."""
    return str(value).lower() if isinstance(value, bool) else str(value)


def space_of(model, system, given, parameters):
    """A small space."""
    others = [name for name in ("tp", "cp", "pp") if name in parameters]
    rows = "micro_batch_size" if "micro_batch_size" in parameters else 1
    given = ", ".join(part for part in (f"world_size: {WORLD}, global_batch_size: {BATCH}", given) if part)
    options = "".join(f"  {name}: [{', '.join(map(written, listed))}]\n" for name, listed in parameters.items())
    return Space.from_text(
        f"schema: search_space/v1\nmodel: {model}\nsystem: {system}\ngiven: {{{given}}}\n"
        f"parameters:\n{options}"
        f"derived:\n  dp: world_size / ({' * '.join(others) or 1})\n"
        f"  gradient_accumulation_steps: global_batch_size / (dp * {rows})\n"
        "objectives: {minimize: [step_time, peak_memory]}\n"
    )


class One:
    """One design, with what rules look at beside it."""

    def __init__(self, space, design):
        model = space.model
        given = {name: value for name, value in space.given.items() if name not in ("world_size",)}
        self.__dict__.update({"sequence_parallel": False, **DEFAULTS, **given, **design})
        self.dp = WORLD / (self.tp * self.cp * self.pp)
        self.m = BATCH / (self.dp * self.micro_batch_size)
        self.heads, self.groups = float(model.num_attention_heads), float(model.num_query_groups)
        self.hidden, self.ffn = float(model.hidden_size), float(model.ffn_hidden_size)
        self.experts, self.moe_ffn = float(model.num_experts), float(model.moe_ffn_hidden_size)
        self.layers, self.seq_len = float(model.num_layers), float(model.seq_len)
        self.chip, self.topk, self.o_groups = space.system.chip, float(model.index_topk), float(model.o_groups)


def frozen(design):
    """A design as something to compare."""
    return tuple(sorted((name, str(value)) for name, value in design.items()))


@pytest.mark.parametrize("name", SPACES)
def test_designs_are_legal_where_each_rule_holds_and_nowhere_else(name):
    model, system, given, parameters = SPACES[name]
    space = space_of(model, system, given, parameters)
    names = [rule.name for rule in space.rules if not rule.name.startswith("uses_all_of_")]
    product = [dict(zip(parameters, values, strict=True)) for values in itertools.product(*parameters.values())]
    broken = dict.fromkeys(names, 0)
    wanted = set()
    for design in product:
        one = One(space, design)
        holds = {rule: bool(RULES[rule](one)) for rule in names}
        assert holds == {rule: rule not in {r.name for r in broken_rules(space, design)} for rule in names}
        counts = one.dp >= 1 and one.dp.is_integer() and one.m >= 1 and one.m.is_integer()
        if counts and all(holds.values()):
            wanted.add(frozen(design))
        for rule, kept in holds.items():
            broken[rule] += not kept
    legal = {frozen(design) for batch in space.legal.enumerate() for design in space.decode(batch)}
    assert legal == wanted
    assert legal


#: Spaces of before these rules -> how many legal designs they had.
COUNTS = cases(__file__, "COUNTS")


@pytest.mark.parametrize("name", COUNTS)
def test_older_spaces_are_as_they_were(name):
    assert Space.load(name).legal.count == pytest.approx(COUNTS[name], rel=1e-12)


LAYOUTS = [(name, layout) for name in shipped.names("spaces") for layout in Space.load(name).layouts]


def evaluated(name, layout):
    """A layout's step. [s]"""
    space = Space.load(name)
    design = space.encode([space.completed(space.layouts[layout])])
    actual = evaluate(space, design, rules=rules_for(space, NATIVE))
    return dict(zip((aim.name for aim in space.objectives), actual.values.ravel(), strict=True))["step_time"]


@pytest.mark.parametrize(("name", "layout"), LAYOUTS)
def test_a_layout_that_ships_is_legal_and_complete(name, layout):
    space = Space.load(name)
    values = dict(space.layouts[layout])
    assert space.completed(values) == values
    assert broken_rules(space, values) == []


#: Space -> step of its published layout [s], and how near ours is. Llama's follow from TFLOP/s of a GPU.
STEPS = {
    "deepseek_v3_2048_h800": (19.926, 0.10),
    "llama3_405b_16384_h100": (6.721, 0.10),
    "llama3_405b_16384_h100_131k": (15.278, 0.10),
}


@pytest.mark.parametrize("name", STEPS)
def test_published_layouts_take_about_as_long_as_published(name):
    seconds, near = STEPS[name]
    assert evaluated(name, "published") == pytest.approx(seconds, rel=near)


def test_folding_pays_as_published():
    """MoE Parallel Folding, table 3: of five layouts of Mixtral 8x22B each is slower than the one before."""
    steps = [evaluated("mixtral_8x22b_128_h100", layout) for layout in Space.load("mixtral_8x22b_128_h100").layouts]
    assert steps == sorted(steps)
