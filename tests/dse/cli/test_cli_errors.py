"""Mistakes of users: one clear line on stderr, the right exit code, and nothing left behind."""

import subprocess
import sys

import optuna
import pytest

from costmodel.installation import __version__
from dse.cli import main
from tests.support.cases import by_table, cases
from tests.support.commands import outputs_of, stderr_of, stdout_of

#: Arguments -> text of the one line on stderr; exit code 1.
MISTAKES = cases(__file__, "MISTAKES")

#: Arguments -> text of the one line on stderr; exit code 2.
WRONG_USAGE = cases(__file__, "WRONG_USAGE")


@pytest.mark.parametrize("arguments", MISTAKES)
def test_a_mistake_is_one_line_and_exit_code_1(arguments, tmp_path):
    out, err = outputs_of(*arguments.split(), code=1)
    assert (out, err.count("\n"), [*tmp_path.iterdir()]) == ("", 1, [])
    assert err.startswith("dse: ")
    assert MISTAKES[arguments] in err


@pytest.mark.parametrize("arguments", WRONG_USAGE)
def test_wrong_usage_is_exit_code_2(arguments, tmp_path):
    err = stderr_of(*arguments.split(), code=2)
    assert (err.count("\n"), [*tmp_path.iterdir()]) == (1, [])
    assert WRONG_USAGE[arguments] in err


def test_a_study_of_another_space_is_refused_and_kept():
    main(["search", "gpt3_175b_1024_a100", "--budget", "5"])
    err = stderr_of("search", "gpt3_175b_1024_a100", "--budget", "5", "--set", "tp=8")
    assert "searches another space" in err
    assert "--study" in err
    assert main(["trials", "gpt3_175b_1024_a100"]) == 0


@pytest.mark.slow
def test_an_unknown_study_among_many_is_told_with_the_nearest():
    names = [f"{word}_{number}" for word in ("plan", "robust") for number in range(15)]
    for name in names:
        optuna.create_study(study_name=name, storage="sqlite:///dse.db")
    error = stderr_of("pareto", "zz_robust_of_last_week_14")
    assert "no study 'zz_robust_of_last_week_14'; the nearest are robust_14, " in error
    assert error.endswith("`dse studies` lists all 30\n")


def test_the_command_line_starts_without_heavy_imports():
    heavy = "{'numpy', 'pandas', 'optuna', 'sqlalchemy', 'rich', 'yaml'} & sys.modules.keys()"
    script = f"import sys\nfrom dse.cli import main\nmain([])\nprint({heavy})"
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    assert done.stdout.endswith("\nset()\n")


def test_nothing_is_imported_before_interrupts_are_heeded():
    script = "import sys; before = {*sys.modules}; import dse.start; print(sorted({*sys.modules} - before))"
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "['__future__', 'dse', 'dse.start', 'gc']"  # which is built in


def test_a_command_that_is_proposed_is_one_for_any_name(tmp_path, small_space):
    (tmp_path / "small.yaml").write_text(small_space)
    search = ["search", "small.yaml", "--budget", "2", "--study", "a; touch b"]
    assert main(search) == 0
    assert "continue it with `dse resume 'a; touch b'`" in stderr_of(*search, "--seed", "1")


def test_version():
    assert stdout_of("--version") == f"dse {__version__}\n"


@by_table("file", "options", "message")
def test_options_of_other_files_are_refused(file, options, message, tmp_path):
    (tmp_path / "step.hlo").write_text("HloModule m\n\nENTRY e {\n  ROOT x = f32[8,8] parameter(0)\n}\n")
    (tmp_path / "setup.txt").write_text("dataflow_graph {\n}\nmiscellany {\n}\n")
    (tmp_path / "lstm.yaml").write_text("schema: deepflow/v1\n")
    (tmp_path / "other.txt").write_text("of no kind that has a mark\n")
    assert message in stderr_of("cost", str(tmp_path / file), *options)


@pytest.mark.parametrize(
    ("text", "message"), cases(__file__, "a_file_without_a_cost_is_told_with_what_would_do"), ids=["unknown", "log"]
)
def test_a_file_without_a_cost_is_told_with_what_would_do(text, message, tmp_path):
    (tmp_path / "file.yaml").write_text(text)
    err = stderr_of("cost", "file.yaml")
    assert err.startswith(f"dse: file.yaml: {message}")
    assert err.count("\n") == 1


def test_a_module_without_kernels_has_empty_tables(tmp_path):
    (tmp_path / "nothing.hlo").write_text("HloModule m\n\nENTRY e {\n  ROOT x = f32[8,8] parameter(0)\n}\n")
    assert "0 kernels" in stdout_of("cost", "nothing.hlo")
    error = stderr_of("cost", "nothing.hlo", "--system", "a100_80g_dgx")
    assert "nothing.hlo: runs no kernels, so that nothing can be evaluated" in error
