"""Rules of how a module trains: small steps by hand on both sides of each rule, and modules that XLA compiled."""

import pytest

from tests.support.cases import cases
from tests.support.hlo_texts import DATA, LOOP, TRANSFORMER, analysed, figures, program, without_metadata

ASKED = ("rematerialisation", "gradient_accumulation", "gradient_clipping", "optimizer")
FORWARD = 'metadata={op_name="jit(f)/jvp()/net"}'
BACKWARD = 'metadata={op_name="jit(f)/transpose(jvp())/net"}'
UPDATE = 'metadata={op_name="jit(f)/update"}'
SUM = "sum { l = f32[] parameter(0)\n r = f32[] parameter(1)\n ROOT s = f32[] add(l, r) }"

#: Two layers without bends: y = x a b, with gradients as if y were their errors.
NET = f"""
  h = f32[3,6] dot(x, a), lhs_contracting_dims={{1}}, rhs_contracting_dims={{0}}, {FORWARD}
  y = f32[3,2] dot(h, b), lhs_contracting_dims={{1}}, rhs_contracting_dims={{0}}, {FORWARD}
  grad_b = f32[6,2] dot(h, y), lhs_contracting_dims={{0}}, rhs_contracting_dims={{0}}, {BACKWARD}
  e = f32[3,6] dot(y, b), lhs_contracting_dims={{1}}, rhs_contracting_dims={{1}}, {BACKWARD}
  grad_a = f32[4,6] dot(x, e), lhs_contracting_dims={{0}}, rhs_contracting_dims={{0}}, {BACKWARD}"""
SHAPES = {"a": "f32[4,6]", "b": "f32[6,2]"}


def told(text: str) -> dict[str, object]:
    """Figures of a module by the rules."""
    actual = figures(text)
    return {name: actual[f"model.{name}"] for name in ASKED if f"model.{name}" in actual}


def step(update: str, *, kept: str = "", first: str = "") -> str:
    """A step of training that keeps arrays beside the weights.

    Parameters
    ----------
    update : str
        Lines that give new_{w}, and new_m{w} and so on, for each weight {w} of shape {s}; {c} is a tenth, {n}
        a square of its columns.
    kept : str
        Letters of what is kept for each weight.
    first : str
        Lines before the updates.
    """
    names = [role + weight for role in ("", *kept) for weight in SHAPES]
    lines = [f"{name} = {SHAPES[name[-1]]} parameter({index})" for index, name in enumerate(names)]
    lines += [f"x = f32[3,4] parameter({len(names)})", "zero = f32[] constant(0)", "c = f32[] constant(0.1)"]
    lines += [f"c{weight} = {shape} broadcast(c), dimensions={{}}" for weight, shape in SHAPES.items()]
    lines += [NET, first]
    for weight, shape in SHAPES.items():
        columns = shape[:-1].partition(",")[2]
        square = f"f32[{columns},{columns}]"
        written = update.format(w=weight, s=shape, c=f"c{weight}", n=square).strip().splitlines()
        lines += [f"{line}, {UPDATE}" for line in written]
    given = ", ".join(SHAPES[name[-1]] for name in names)
    lines.append(f"ROOT all = ({given}) tuple({', '.join(f'new_{name}' for name in names)})")
    aliases = ", ".join(f"{{{index}}}: ({index}, {{}})" for index in range(len(names)))
    return program("\n".join(lines), before=SUM, header=f", input_output_alias={{ {aliases} }}")


SGD = """
  rate_{w} = {s} multiply(grad_{w}, {c})
  new_{w} = {s} subtract({w}, rate_{w})"""
MOMENTUM = """
  old_{w} = {s} multiply(m{w}, {c})
  new_m{w} = {s} add(old_{w}, grad_{w})
  new_{w} = {s} subtract({w}, new_m{w})"""
MUON = MOMENTUM.replace("subtract({w}, new_m{w})", "subtract({w}, even_{w})").replace(
    "  new_{w} =",
    """  gram_{w} = {n} dot(new_m{w}, new_m{w}), lhs_contracting_dims={{0}}, rhs_contracting_dims={{0}}
  even_{w} = {s} dot(new_m{w}, gram_{w}), lhs_contracting_dims={{1}}, rhs_contracting_dims={{0}}
  new_{w} =""",
)


# Update, what is kept -> the optimizer's name.
OPTIMIZERS = cases(__file__, "OPTIMIZERS")


@pytest.mark.parametrize("kind", OPTIMIZERS)
def test_an_optimizer_is_known_by_what_it_keeps_and_does(kind):
    update, kept, name = OPTIMIZERS[kind]
    actual = told(step(update, kept=kept))
    assert actual.get("optimizer") == name
    assert actual["gradient_clipping"] == "no"
    assert actual.get("gradient_accumulation") == ("no" if name else None)  # else something may be hidden


def test_what_only_feeds_updates_is_kept_and_products_with_it_are_of_the_optimizer():
    analysis = analysed(step(MUON, kept="m"))
    assert [array.name for array in analysis.state.weights] == ["a", "b"]
    assert [array.name for array in analysis.state.kept] == ["ma", "mb"]
    kernels = zip(analysis.graph.kernels, analysis.phases, strict=True)
    assert {phase for kernel, phase in kernels if kernel.name.startswith(("gram", "even"))} == {"optimizer"}


SQUARE = """  square_{w} = {s} multiply(grad_{w}, grad_{w}), {b}
  norm_{w} = f32[] reduce(square_{w}, zero), dimensions={{0,1}}, to_apply=sum, {b}
"""
NORMS = "".join(SQUARE.format(w=weight, s=shape, b=UPDATE) for weight, shape in SHAPES.items())
TOTAL = f"{NORMS}  total = f32[] add(norm_a, norm_b), {UPDATE}\n"
CLIPPED = "\n  wide_{w} = {s} broadcast(NORM), dimensions={{}}\n  part_{w} = {s} divide(grad_{w}, wide_{w})"
UPDATED = CLIPPED + SGD.replace("grad_{w}", "part_{w}")


def test_gradients_are_clipped_by_the_norm_of_all():
    """A norm of its own for each weight clips none of the others; a norm that is only given, none at all."""
    assert told(step(UPDATED.replace("NORM", "total"), first=TOTAL))["gradient_clipping"] == "yes"
    assert told(step(UPDATED.replace("NORM", "norm_{w}"), first=NORMS))["gradient_clipping"] == "no"
    assert told(step(SGD, first=TOTAL))["gradient_clipping"] == "no"
    largest = TOTAL.replace("to_apply=sum", "to_apply=most")
    most = f"most {{ {SUM[5:].replace('add', 'maximum')}\nsum {{ "
    text = step(UPDATED.replace("NORM", "total"), first=largest).replace("sum { ", most, 1)
    assert told(text)["gradient_clipping"] == "no"  # the largest square is not a norm


def accumulating(total: str = "add(ma, grad_a)", rest: str = "") -> str:
    """A step that adds a's gradients to ma, and updates nothing else; b is given."""
    lines = ["ma = f32[4,6] parameter(0)", "a = f32[4,6] parameter(1)", "b = f32[6,2] parameter(2)"]
    lines += ["x = f32[3,4] parameter(3)", "c = f32[] constant(0.1)"]
    lines += ["ca = f32[4,6] broadcast(c), dimensions={}", NET, rest, f"t = f32[4,6] {total}, {UPDATE}"]
    lines.append("ROOT all = (f32[4,6], f32[6,2]) tuple(t, grad_b)")
    return program("\n".join(lines), header=", input_output_alias={ {0}: (0, {}) }")


def test_an_array_that_is_added_to_and_serves_nothing_else_accumulates():
    assert told(accumulating()) == {"rematerialisation": "no", "gradient_accumulation": "yes"}
    assert "gradient_accumulation" not in told(accumulating("multiply(ma, grad_a)"))  # unknown, and not "no"
    assert "gradient_accumulation" not in told(accumulating(rest="  n = f32[4,6] negate(ma)\n  o = f32[4,6] add(n, n)"))


LOOPED = cases(__file__, "LOOPED")


def looped(carried: str, given: tuple[str, str]) -> str:
    """A loop of four around both passes, and what the step gives for the weights."""
    lines = ["a = f32[4,6] parameter(0)", "b = f32[6,2] parameter(1)", "x = f32[3,4] parameter(2)"]
    lines += ["i = s32[] constant(0)", "zero = f32[] constant(0)", "one = f32[4,6] broadcast(zero), dimensions={}"]
    lines += ["two = f32[6,2] broadcast(zero), dimensions={}"]
    state = "(s32[], f32[4,6], f32[6,2], f32[3,4], f32[4,6], f32[6,2])"
    lines += [f"start = {state} tuple(i, a, b, x, one, two)"]
    count = 'backend_config={"known_trip_count":{"n":"4"}}'
    lines += [f"done = {state} while(start), condition=cond, body=body, {count}"]
    for name, index, weight in (("da", 1, "a"), ("db", 2, "b"), ("sa", 4, "a"), ("sb", 5, "b")):
        lines.append(f"{name} = {SHAPES[weight]} get-tuple-element(done), index={index}")
    for weight in SHAPES:
        lines.append(f"u{weight} = {SHAPES[weight]} subtract({weight}, s{weight}), {UPDATE}")
    lines.append(f"ROOT all = (f32[4,6], f32[6,2]) tuple({given[0]}, {given[1]})")
    before = LOOPED.format(net=NET, update=UPDATE, carried=carried)
    return program("\n".join(lines), before=before, header=", input_output_alias={ {0}: (0, {}), {1}: (1, {}) }")


def test_a_loop_around_both_passes_accumulates_where_the_update_is_outside():
    """A loop of whole steps, weights among what it carries, accumulates nothing."""
    assert told(looped("i, a, b, x, na, nb", ("ua", "ub")))["gradient_accumulation"] == "yes"
    assert told(looped("i, na, nb, x, ta, tb", ("da", "db"))).get("gradient_accumulation") != "yes"


def test_what_xla_compiled():
    """make_modules.py: the trainer does it all; the transformer's Adam only computes layers again."""
    assert told((DATA / "trainer.hlo").read_text()) == {
        "rematerialisation": "yes", "gradient_accumulation": "yes", "gradient_clipping": "yes",
        "optimizer": "AdamW",
    }  # fmt: skip
    assert told(TRANSFORMER) == {
        "rematerialisation": "yes", "gradient_accumulation": "no", "gradient_clipping": "no",
        "optimizer": "Adam",
    }  # fmt: skip


def test_nothing_is_told_of_programs_that_name_no_gradients():
    assert told(LOOP) == {}
    assert told(without_metadata(TRANSFORMER)) == {}
