"""Runs what `dse plan` prints as next."""

import shlex

from costmodel import load_model
from dse.cli import main

#: Chips of a plan, by the size of the model; twice as many where nothing fits.
CHIPS = ((1e11, 16), (5e11, 512), (float("inf"), 2048))
#: Words of what is refused because of numbers of chips or formats, not of commands.
SMALL = ("fits", "would do")


def check_next_commands(capsys, model: str, system: str, framework: str = "") -> None:
    """Plans a model in the current folder, and runs each command that is printed as next."""
    parameters = load_model(model).num_parameters
    chips = next(chips for most, chips in CHIPS if parameters < most)
    asked = ["--system", system, *(["--framework", framework] if framework else [])]
    while (code := main(["plan", model, "--gpus", str(chips), *asked])) and chips <= 8192:
        assert any(word in capsys.readouterr().err for word in SMALL)
        chips *= 2
    out, err = capsys.readouterr()
    assert code == 0, err
    commands = [shlex.split(line) for line in out.split("\nNext ")[1].split("\n\n")[0].splitlines()]
    assert [words[1] for words in commands if words[1] != "export"] == ["explain"]
    for _, command, *words in commands:
        code, err = main([command, *words]), capsys.readouterr().err
        assert code == 0, (command, err)
        assert " GB, not " not in err, "needs more memory than the plan says"
