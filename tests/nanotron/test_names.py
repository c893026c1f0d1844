"""Names that nanotron's YAML lacks, or that are made up: said before anything starts, and never looked up on a hub."""

from typing import Any

import pytest

from conceptloader.errors import ConfigError
from conceptloader.integrations.nanotron_lm.launch import Run
from conceptloader.integrations.nanotron_lm.options import NO_TOKENIZER, replace_in
from tests.raises import raises


def stages(dataset: dict[str, Any]) -> dict[str, Any]:
    return {"data_stages": [{"data": {"dataset": dataset}}]}


@pytest.mark.parametrize(
    ("dataset", "found"),
    [
        ({"datasets": {"web": {"path": "web"}}}, "datasets"),
        ({"tpye": "conceptloader", "datasets": {"web": {"path": "web"}}}, "tpye, datasets"),
        ({"config": "mixture.yaml"}, "config"),
    ],
)
def test_a_section_of_ours_without_its_type_is_named(dataset: dict[str, Any], found: str) -> None:
    with pytest.raises(ConfigError, match=rf"data_stages\[0\]\.data\.dataset: found {found} and no type"):
        replace_in(stages(dataset))


@pytest.mark.parametrize("dataset", [{"dataset_folder": "x"}, {"hf_dataset_or_datasets": "some/dataset"}])
def test_nanotrons_own_sections_stay_as_they_are(dataset: dict[str, Any]) -> None:
    assert replace_in(stages(dataset)) == stages(dataset)


def test_a_made_up_name_is_never_looked_up() -> None:
    """Not even to decode: the name stands for no tokenizer, and a hub might have one of it."""

    def hub(*_: Any) -> Any:
        raise AssertionError("asked the hub")

    with raises(ConfigError, found="stands for none"):
        Run().from_pretrained(hub, NO_TOKENIZER)
