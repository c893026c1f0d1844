"""Names that nanotron's YAML lacks, or that are made up: said before anything starts, and never looked up on a hub."""

import pytest

from conceptloader.errors import ConfigError
from conceptloader.integrations.nanotron_lm.launch import Run
from conceptloader.integrations.nanotron_lm.options import NO_TOKENIZER, replace_in
from tests.raises import raises

MEMBERS = {"datasets": {"web": {"path": "web"}}}


@pytest.mark.parametrize("dataset", [MEMBERS, {"tpye": "conceptloader", **MEMBERS}, {"config": "mixture.yaml"}])
def test_a_section_of_ours_without_its_type_is_named(dataset):
    with raises(ConfigError, "data_stages[0].data.dataset", f"{', '.join(dataset)} and no type", fix="type: conceptl"):
        replace_in({"data_stages": [{"data": {"dataset": dataset}}]})


@pytest.mark.parametrize("dataset", [{"dataset_folder": "x"}, {"hf_dataset_or_datasets": "some/dataset"}])
def test_nanotrons_own_sections_stay_as_they_are(dataset):
    stages = {"data_stages": [{"data": {"dataset": dataset}}]}
    assert replace_in(stages) == stages


def test_a_made_up_name_is_never_looked_up():
    """Not even to decode: the name stands for no tokenizer, and a hub might have one of it."""

    def hub(*_):
        raise AssertionError("asked the hub")

    with raises(ConfigError, found="stands for none"):
        Run().from_pretrained(hub, NO_TOKENIZER)
