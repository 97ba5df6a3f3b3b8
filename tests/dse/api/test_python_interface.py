"""The Python interface: explicit parameters, records that print in ten lines, errors in words of Python."""

import inspect

import pytest

import costmodel
import dse
from costmodel.errors import DseError
from tests.support.commands import stderr_of

PLAN = {"gpus": 8, "system": "h100_80g_dgx", "global_batch_size": 16}


def public_functions():
    """Name -> function of `dse` and method of `dse.Study`."""
    functions = {name: getattr(dse, name) for name in dse.__all__ if inspect.isfunction(getattr(dse, name))}
    methods = inspect.getmembers(dse.Study, callable)
    return functions | {f"Study.{name}": method for name, method in methods if not name.startswith("_")}


@pytest.mark.parametrize("name", public_functions())
def test_every_parameter_is_named(name):
    kinds = {parameter.kind for parameter in inspect.signature(public_functions()[name]).parameters.values()}
    assert inspect.Parameter.VAR_KEYWORD not in kinds


def test_records_print_in_ten_short_lines(tmp_path):
    run = "train_step,mine,gpt_22b,A100-SXM4-80GB,8,1,1,4,1,1.42"
    (tmp_path / "runs.csv").write_text(f"row_type,dataset,model,hw,tp,pp,dp,mbs,ga,iter_time_s\n{run}\n")
    plan = dse.plan("llama3_8b", **PLAN)
    space = plan.study.space
    for record in (
        space, plan, dse.explain(space), dse.sensitivity(space), dse.exact_front(space),
        dse.sweep(space, {"tp": [1, 2]}), dse.fit(space, {"tp": 8}), plan.study, plan.study.certify(),
        plan.study.export(format="megatron"), dse.validate(tmp_path / "runs.csv")[0],
        costmodel.load_system("h100_80g_dgx"), costmodel.load_model("deepseek_v3"),
    ):  # fmt: skip
        lines = repr(record).splitlines()
        assert len(lines) <= 10
        assert max(map(len, lines)) <= 100
        assert type(record).__name__ in lines[0]


def test_errors_name_the_parameter_in_python_and_the_option_in_a_command():
    with pytest.raises(DseError, match=r"^max_days: of how many tokens\? name them with tokens, such as 15T$"):
        dse.plan("llama3_8b", **PLAN, max_days=10)
    with pytest.raises(DseError, match=r"^headroom '7 cm': expected a size"):
        dse.plan("llama3_8b", **PLAN, headroom="7 cm")
    with pytest.raises(DseError, match=r"^tokens: "):
        dse.plan("llama3_8b", **PLAN, tokens="many")
    with pytest.raises(DseError, match=r"^layout nope: no layout"):
        dse.evaluate_design("llama3_70b_512_h100", layout="nope")
    words = ["plan", "llama3_8b", "--gpus", "8", "--system", "h100_80g_dgx"]
    assert "dse: --max-days: of how many tokens? name them with --tokens" in stderr_of(*words, "--max-days", "10")
    assert "dse: --headroom '7 cm': expected a size" in stderr_of(*words, "--headroom", "7 cm")


def test_an_option_of_another_kind_of_file_is_refused(tmp_path):
    (tmp_path / "module.hlo").write_text("HloModule m\n\nENTRY e {\n  ROOT x = f32[6] parameter(0)\n}\n")
    with pytest.raises(DseError, match=r"^gpu_type: not an option of an HLO module"):
        dse.cost(tmp_path / "module.hlo", gpu_type="H100")
    assert dse.cost(tmp_path / "module.hlo", barriers="element", large=True)
