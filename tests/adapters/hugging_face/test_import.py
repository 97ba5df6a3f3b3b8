"""`dse import`: model files from Hugging Face configurations."""

import json

import pytest

from costmodel import DseError, load_model
from dse.adapters.hugging_face.configuration import import_model
from dse.adapters.hugging_face.layers import ALIASES, families
from dse.cli import main
from tests.support.cases import by_table, cases
from tests.support.commands import json_of
from tests.support.hugging_face_configs import PUBLISHED

MIXTRAL = PUBLISHED["Mixtral 8x7B"][0]
#: Words of `model_type` that are read. [-]
KNOWN = len({*families(), *ALIASES})


@pytest.fixture
def imported(tmp_path):
    """Imports a configuration given as a mapping, or as text."""

    def read(config, **options):
        path = tmp_path / "config.json"
        path.write_text(config if isinstance(config, str) else json.dumps(config))
        return import_model(path, **options)

    return read


@pytest.mark.parametrize("name", PUBLISHED)
def test_parameters_are_those_published(name, imported):
    config, parameters, _ = PUBLISHED[name]
    assert imported(config).model.num_parameters == parameters


@pytest.mark.parametrize("name", [name for name, (_, _, shipped) in PUBLISHED.items() if shipped])
def test_a_configuration_says_what_the_shipped_file_of_the_model_says(name, imported):
    """But for what costs nothing, and the length of sequences, which configurations do not say."""
    config, _, shipped = PUBLISHED[name]
    expected = load_model(shipped)
    model = imported(config, seq_len=expected.seq_len).model
    if model.mtp_layers == expected.mtp_layers:  # that of Qwen3-Next says nothing of prediction further on
        assert model.forward_flops(causal=True) == expected.forward_flops(causal=True)
    assert model.active_parameters == expected.active_parameters
    assert [(layer, count) for layer, count in model.sequence] == [*expected.sequence]


def test_a_model_file_comes_out_and_reads_back(imported, tmp_path, capsys):
    (tmp_path / "config.json").write_text(json.dumps(MIXTRAL))
    assert main(["import", str(tmp_path / "config.json"), "-o", str(tmp_path / "mixtral.yaml")]) == 0
    assert load_model(tmp_path / "mixtral.yaml").num_parameters == 46_702_792_704
    assert main(["import", str(tmp_path)]) == 0  # the folder does, too
    assert capsys.readouterr().out == (tmp_path / "mixtral.yaml").read_text()


def test_json_is_the_fields_and_the_number_of_parameters(tmp_path):
    (tmp_path / "config.json").write_text(json.dumps(MIXTRAL))
    record = json_of("import", str(tmp_path / "config.json"))
    for more in ([], ["--format", "json"]):
        assert main(["import", str(tmp_path / "config.json"), "-o", str(tmp_path / "model.json"), *more]) == 0
        assert json.loads((tmp_path / "model.json").read_text()) == record
    assert record["parameters"] == 46_702_792_704
    assert record["active_parameters"] == 12_879_925_248
    assert record["model"]["num_experts"] == 8


@pytest.mark.parametrize(("changed", "fields"), cases(__file__, "windows_and_tables"))
def test_windows_and_tables_are_those_that_the_keys_say_together(changed, fields, imported):
    model = imported(PUBLISHED["Qwen2.5 7B"][0] | changed).model
    assert {name: getattr(model, name) for name in fields} == fields


@by_table("name", "changed", "order")
def test_layers_in_no_regular_order_are_an_order_of_letters(name, changed, order, imported):
    """Letters are the mixers' first, capitals where layers have experts."""
    model = imported(PUBLISHED[name][0] | changed).model
    assert model.layer_order == order
    assert sum(model.kinds.values()) == model.num_layers


def test_sequences_are_those_of_pre_training(imported):
    assert imported(PUBLISHED["Llama 3.1 405B"][0]).model.seq_len == 8192  # stretched to 131,072 afterwards
    assert imported(PUBLISHED["Llama 2 7B"][0]).model.seq_len == 4096
    assert imported(MIXTRAL).model.seq_len == 8192
    assert imported(MIXTRAL).notes == ("seq_len: 8192 tokens, of 32768 that it allows; --seq-len sets another",)


@pytest.mark.parametrize(("name", "changed", "note"), cases(__file__, "NOTES"))
def test_what_a_model_file_cannot_state_is_named_in_one_line(name, changed, note, imported):
    assert imported(PUBLISHED[name][0] | changed).notes == (note,)


#: Model -> what its published configuration says of its functions.
FUNCTIONS = cases(__file__, "FUNCTIONS")


@pytest.mark.parametrize("name", FUNCTIONS)
def test_numerics_are_those_of_the_shipped_file(name, imported):
    config, _, shipped = PUBLISHED[name]
    actual = imported(config | FUNCTIONS[name])
    assert actual.model.numerics == load_model(shipped).numerics
    assert not [note for note in actual.notes if "not in a model file" in note]


@pytest.mark.parametrize(("text", "message"), [
    ("[" * 100_000, "not JSON: nested too deeply"),
    *cases(__file__, "NO_MODELS"),
    *[(json.dumps(PUBLISHED[model][0] | changes), message) for model, changes, message in cases(__file__, "MISTAKES")],
])  # fmt: skip
def test_a_mistake_is_one_line(text, message, imported):
    with pytest.raises(DseError, match=r"config\.json") as raised:
        imported(text)
    assert message.replace("KNOWN", f"{KNOWN}") in str(raised.value).splitlines()[0]
