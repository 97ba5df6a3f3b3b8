"""XLA as the judge, where jaxlib is installed: texts, instructions, and totals of programs drawn at random."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from costmodel import DseError
from dse.adapters.xla import hlo
from tests.adapters.xla.test_hlo_reader import REFUSED
from tests.support.cases import cases
from tests.support.hlo_texts import GPT, OLD_PRINTER, PRINTERS, SEED, TRANSFORMER, figures, program

jax = pytest.importorskip("jax", reason="jax is not installed")
jaxlib = pytest.importorskip("jaxlib._jax", reason="jaxlib is not installed")

SUM = "sum { a = f32[] parameter(0)\n b = f32[] parameter(1)\n ROOT c = f32[] add(a, b) }\n"
NAMES = {
    "xla.flops": "flops",
    "xla.transcendentals": "transcendentals",
    "xla.bytes_accessed": "bytes accessed",
    "xla.bytes_accessed_out": "bytes accessedout{}",
}


TEXTS = {"old": OLD_PRINTER, "transformer": TRANSFORMER, "gpt": GPT}
if SEED.exists():
    TEXTS["reference"] = SEED.read_text()


def judged(text: str):
    """XLA's module of a text."""
    read = getattr(jaxlib, "hlo_module_from_text", None)
    if read is None:
        read = pytest.importorskip("jaxlib._hlo").hlo_module_from_text
    return read(text)


@pytest.mark.parametrize("name", TEXTS)
def test_instructions_are_those_of_xla(name):
    for ours, other in zip(hlo.parse(TEXTS[name], name).computations, judged(TEXTS[name]).computations(), strict=True):
        assert ours.name == other.name
        theirs = {op.name: [operand.name for operand in op.operands()] for op in other.instructions()}
        names = dict(zip(ours.instructions, ours.names, strict=True))
        assert {names[op]: [names[operand] for operand in op.operands] for op in ours.instructions} == theirs


@pytest.mark.parametrize("name", TEXTS)
def test_totals_are_those_of_xla(name):
    client = jax.devices("cpu")[0].client
    told, totals = figures(TEXTS[name]), jaxlib.hlo_module_cost_analysis(client, judged(TEXTS[name]))
    assert told["xla.flops"] == pytest.approx(totals["flops"], rel=1e-6)
    assert told["xla.transcendentals"] == pytest.approx(totals.get("transcendentals", 0), rel=1e-6)
    assert told["xla.bytes_accessed"] == pytest.approx(totals["bytes accessed"], rel=1e-6)
    assert told["xla.bytes_accessed_out"] == pytest.approx(totals["bytes accessedout{}"], rel=1e-6)


@pytest.mark.parametrize("printer", PRINTERS)
def test_printings_that_say_the_same_are_ones_that_xla_reads(printer):
    judged(PRINTERS[printer](OLD_PRINTER))


#: Where XLA says so; other mistakes end its process.
JUDGED = cases(__file__, "JUDGED")


@pytest.mark.parametrize("wrong", JUDGED)
def test_what_is_refused_xla_refuses_too(wrong):
    text = program(REFUSED[wrong][0])
    with pytest.raises(DseError):
        hlo.parse(text, "text")
    with pytest.raises((ValueError, RuntimeError)):
        judged(text)


def counted_alike(text: str) -> None:
    """Our totals of a text are XLA's, to the last bit."""
    told, totals = figures(text), jaxlib.hlo_module_cost_analysis(jax.devices("cpu")[0].client, judged(text))
    assert {key: told[key] for key in NAMES} == {key: totals.get(name, 0) for key, name in NAMES.items()}


@st.composite
def windows(draw, data: int):
    """A window over so many elements, perhaps padded, strided and dilated, and how many results it gives."""
    size, stride, base, dilation = (draw(st.integers(1, most)) for most in (4, 3, 3, 3))
    low, high = (draw(st.integers(-1, 4)) for _ in range(2))
    room = (data - 1) * base + 1 + low + high - ((size - 1) * dilation + 1)
    if room < 0:
        low, room = low - room, 0
    return (size, stride, f"{low}_{high}", base, dilation), room // stride + 1


def window_text(rows) -> str:
    """Windows over some dimensions, as HLO prints them."""
    fields = ("size", "stride", "pad", "lhs_dilate", "rhs_dilate")
    columns = zip(*(row[0] for row in rows), strict=True)
    printed = (f"{key}={'x'.join(map(str, numbers))}" for key, numbers in zip(fields, columns, strict=False))
    return f"window={{{' '.join(printed)}}}"


@given(data=st.data(), rank=st.integers(0, 2))
@settings(max_examples=150)
def test_convolutions(data, rank):
    """Padding and holes do no work, whatever is a batch, a group or a spatial dimension."""
    small = st.integers(1, 4)
    by_feature, by_batch = data.draw(st.sampled_from([(1, 1), (1, 1), (3, 1), (1, 2)]))
    batch, ci, co = data.draw(small) * by_batch, data.draw(small), data.draw(small) * by_feature * by_batch
    sizes = [data.draw(st.integers(1, 7)) for _ in range(rank)]
    rows = [data.draw(windows(size)) for size in sizes]
    spatial = "".join(map(str, range(rank)))
    orders = [data.draw(st.permutations(letters + spatial)) for letters in ("bf", "io", "bf")]
    of = (
        {"b": batch, "f": ci * by_feature, **{str(n): size for n, size in enumerate(sizes)}},
        {"i": ci, "o": co, **{str(n): row[0][0] for n, row in enumerate(rows)}},
        {"b": batch // by_batch, "f": co, **{str(n): row[1] for n, row in enumerate(rows)}},
    )
    shapes = [f"f32[{','.join(str(dims[d]) for d in order)}]" for dims, order in zip(of, orders, strict=True)]
    a, b, c = ("".join(order) for order in orders)
    attributes = f"{window_text(rows)}, dim_labels={a}_{b}->{c}"
    attributes += f", feature_group_count={by_feature}, batch_group_count={by_batch}"
    counted_alike(
        program(
            f"  x = {shapes[0]} parameter(0)\n  w = {shapes[1]} parameter(1)\n"
            f"  ROOT y = {shapes[2]} convolution(x, w), {attributes}"
        )
    )


@given(data=st.data(), spans=st.booleans(), rank=st.integers(1, 3))
@settings(max_examples=60)
def test_window_reductions(data, spans, rank):
    """One that spans a dimension from every place counts as a reduction and a broadcast."""
    sizes = [data.draw(st.integers(1, 6)) for _ in range(rank)]
    index = data.draw(st.integers(0, rank - 1))
    if spans:
        length = sizes[index] = sizes[index] + 1
        rows = [((1, 1, "0_0", 1, 1), size) for size in sizes]
        rows[index] = ((2 * length - 1, 1, f"{length - 1}_{length - 1}", 1, 1), length)
    else:
        rows = [data.draw(windows(size)) for size in sizes]
    result = ",".join(str(row[1]) for row in rows)
    counted_alike(
        program(
            f"  x = f32[{','.join(map(str, sizes))}] parameter(0)\n  z = f32[] constant(0)\n"
            f"  ROOT y = f32[{result}] reduce-window(x, z), {window_text(rows)}, to_apply=sum",
            before=SUM,
        )
    )


# Instruction -> its result; x and y are f32[6,10], i an s32[], c a c64[6,10], t a pair of arrays.
INSTRUCTIONS = cases(__file__, "INSTRUCTIONS")
GIVEN = cases(__file__, "GIVEN")
BODIES = SUM + "".join(
    f"{name} {{ a = f32[] parameter(0)\n b = f32[] parameter(1)\n {more} ROOT r = pred[] compare(a, b), "
    f"direction={way} }}\n"
    for name, way, more in (("at_least", "GE", ""), ("less", "LT", "c = f32[] parameter(2)\n d = f32[] parameter(3)\n"))
)


@pytest.mark.parametrize("written", INSTRUCTIONS)
def test_instructions(written):
    counted_alike(program(f"{GIVEN}  ROOT o = {INSTRUCTIONS[written]} {written}", before=BODIES))


# Instruction of a fusion on p = f32[50,8], u = f32[1,8], i = s32[], w = f32[8] -> shape.
FUSED = cases(__file__, "FUSED")
SHAPES = {"p": "f32[50,8]", "u": "f32[1,8]", "i": "s32[]", "w": "f32[8]", "rows": "s32[1]"}


@given(data=st.data(), steps=st.integers(1, 8), several=st.booleans(), custom=st.booleans())
@settings(max_examples=150)
def test_fusions(data, steps, several, custom):
    """Slices read what they give, updates in place nothing; a root that updates writes the update."""
    made: dict[str, list[str]] = {"p": ["p"], "u": ["u"]}
    lines = [f"{name} = {shape} parameter({index})" for index, (name, shape) in enumerate(SHAPES.items())]
    lines += ["zero = s32[] constant(0)", "many = f32[8] constant({1,2,3,4,5,6,7,8})"]
    for step in range(steps):
        written = data.draw(st.sampled_from(list(FUSED)))
        shape = FUSED[written]
        for letter, names in made.items():
            while f"@{letter}" in written:
                written = written.replace(f"@{letter}", data.draw(st.sampled_from(names)), 1)
        lines.append(f"v{step} = {SHAPES[shape]} {written}")
        made[shape].append(f"v{step}")
    last = f"v{steps - 1}"
    roots = [last, *made["p"][1:3]] if several else [last]
    shapes = [next(line.split()[2] for line in lines if line.startswith(f"{root} =")) for root in roots]
    result = f"({', '.join(shapes)})" if several else shapes[0]
    root = f"tuple({', '.join(roots)})" if several else f"copy({last})"
    lines.append(f"ROOT r = {result} {root}")
    if not several:
        lines[-2:] = ["ROOT " + lines[-2]]
    kind = "kCustom" if custom else "kLoop"
    before = "fused {\n" + "\n".join(lines) + "\n}\n"
    given_lines = "\n".join(f"  {name} = {shape} parameter({n})" for n, (name, shape) in enumerate(SHAPES.items()))
    counted_alike(
        program(
            f"{given_lines}\n  ROOT r = {result} fusion({', '.join(SHAPES)}), kind={kind}, calls=fused", before=before
        )
    )


def test_loops_choices_calls_and_pairs():
    """A loop counts once, with its condition; of a choice the larger in each figure; of a pair both parts."""
    text = cases(__file__, "LOOPS")
    counted_alike(text)
    assert hlo.graph(hlo.parse(text, "text")).kernels


@pytest.mark.slow
def test_a_training_step():
    from tests.support.compiled_programs import Step, compiled

    program = compiled(Step(accumulate=2))
    told = figures(program.text)
    assert {key: told[key] for key in NAMES} == {key: program.cost.get(name, 0) for key, name in NAMES.items()}
