"""Commands that `dse plan` prints as next work, for every model, on GPUs and TPUs, with all its software."""

import pytest

from costmodel import load_model
from costmodel.formats.framework_file import framework_names, load_framework
from costmodel.formats.model_file import model_names
from costmodel.training.model import ModelShape
from dse.spaces.sections.frameworks import refused_model
from tests.support.next_commands import check_next_commands

MODELS = [name for name in model_names() if isinstance(load_model(name), ModelShape)]


@pytest.mark.parametrize("framework", framework_names())
@pytest.mark.parametrize("system", ["h100_80g_dgx", "gb200_186g_nvl72", "tpu_v5p_pod"])
@pytest.mark.parametrize("model", MODELS)
def test_next_commands_work(model, system, framework, capsys):
    if reason := refused_model(load_framework(framework), load_model(model)):
        pytest.skip(reason)
    check_next_commands(capsys, model, system, framework)
