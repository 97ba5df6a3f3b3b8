"""Names, options and values as people type them."""

import json

import pytest

from costmodel.formats import shipped
from dse import Space
from dse.cli import COMMANDS, current_command, main, parsed
from tests.support.cases import by_table
from tests.support.commands import json_of, stderr_of, stdout_of

SPACE = "gpt3_175b_1024_a100"


@pytest.mark.parametrize("earlier", shipped.spellings("earlier"))
def test_an_earlier_command_is_a_present_one(earlier):
    assert current_command([earlier, "x"])[0] in COMMANDS


@pytest.mark.parametrize("words", [[], ["help"]])
def test_dse_alone_lists_the_commands(words):
    shown = stdout_of(*words)
    assert all(f"\n  {name}" in shown for name in COMMANDS)


@by_table("typed", "name", "value")
def test_usual_options_of_plan(typed, name, value):
    args = parsed(["plan", "llama3_70b", "--num-gpus", "256", "--hw", "h100", *typed.split()])
    assert (args.gpus, args.system) == ([256], ["h100"])
    given = getattr(args, name)
    assert (given if isinstance(given, str | int | float) else json.loads(json.dumps(given))) == value


@by_table("kind", "typed", "name")
def test_usual_names_stand_for_built_in_files(kind, typed, name):
    assert shipped.current_name(typed, kind) == name


def test_every_usual_name_is_of_a_file_that_is_there():
    for kind in ("models", "systems", "frameworks"):
        assert {*shipped._usual_names(kind).values()} <= {*shipped.names(kind)}


def test_values_of_a_layout_may_be_short_or_in_capitals():
    space = Space.load(SPACE)
    long = space.pinned({"tp": 8, "micro_batch_size": 1, "recompute": "full"})
    assert space.pinned({"TP": "8", "mbs": "1", "Recompute": "FULL"}).fingerprint == long.fingerprint


def test_a_plan_keeps_the_values_that_are_set():
    plan = ["plan", "llama3_8b", "--gpus", "16", "--system", "h100"]
    front = json.loads(stdout_of(*plan, "--tp", "4", "--json"))["front"]
    assert {design["params"].get("tp", 4) for design in front} == {4}
    assert "tp=3: not an option; tp can be 1, 2, 4" in stderr_of(*plan, "--set", "tp=3")


@by_table("typed", "said")
def test_a_mistake_is_one_line_with_a_way_on(typed, said, tmp_path, capsys):
    (tmp_path / "config.json").write_text('{"model_type": "llama"}')
    (tmp_path / "notes.txt").write_text("some notes\n")
    (tmp_path / "odd.json").write_text('{"model_type": "odd", "hidden_size": 64, "num_hidden_layers": 2}')
    (tmp_path / "near.json").write_text('{"model_type": "lama"}')
    hub = "train.py --model_name_or_path meta-llama/Llama-3.1-70B"
    (tmp_path / "hf.sh").write_text(f"torchrun --nproc_per_node 8 --nnodes 4 {hub}\n")
    (tmp_path / "ds.sh").write_text(f"deepspeed --hostfile hosts {hub} --deepspeed ds.json\n")
    try:
        code = main(typed.split())
    except SystemExit as stop:
        code = stop.code
    err = capsys.readouterr().err
    assert code in (1, 2)
    [line] = [line for line in err.splitlines() if not line.startswith("dse: assumed")]
    assert said in line


@pytest.mark.usefixtures("stored")
def test_show_filters_sorts_and_cuts():
    trials = json_of("show", "small", "--trials")["trials"]
    times = {trial["trial"]: trial["values"]["step_time_s"] for trial in trials}
    limit = sorted(times.values())[2]
    words = ["show", "small", "--trials", "--where", f"step_time <= {limit!r} s", "--sort", "step_time"]
    shown = [trial["trial"] for trial in json_of(*words, "--descending")["trials"]]
    assert shown == sorted((n for n in times if times[n] <= limit), key=lambda n: -times[n])
    [first] = json_of(*words, "--top", "1")["trials"]
    assert first["trial"] == min(times, key=lambda n: times[n])
    tp = trials[0]["params"]["tp"]
    shown = {trial["trial"] for trial in json_of("show", "small", "--trials", "--where", f"tp == {tp}")["trials"]}
    assert shown == {trial["trial"] for trial in trials if trial["params"]["tp"] == tp}
