"""Our dataset section in nanotron's own config classes. Needs NANOTRON_SRC."""

import json
from pathlib import Path

import pytest

from tests.corpora.token_files import write_datatrove
from tests.nanotron import support
from tests.raises import cells

pytestmark = [pytest.mark.usefixtures("nanotron_src"), pytest.mark.timeout(400), pytest.mark.slow]
SCRIPT = Path(__file__).parent / "yaml_script.py"


@pytest.fixture(scope="module")
def parsed(tmp_path_factory, dataset, nanotron_src):
    """What yaml_script.py found for each of these dataset sections, all in one process."""
    folder = tmp_path_factory.mktemp("yaml")
    whole = {k: v for k, v in dataset.items() if k != "type"}
    (folder / "mixture.yaml").write_text(json.dumps(whole))
    (folder / "wrong.yaml").write_text(json.dumps({**whole, "blokc": 1}))
    (folder / "tokens").mkdir()
    write_datatrove(folder / "tokens", "00000.ds", [[*range(200)]])
    tokens = str(folder / "tokens")
    nanoset = {"dataset_folder": str(folder), "vocab_size": support.VOCABULARY, "tokenizer_name": "conceptloader/none"}
    ours = {"type": "conceptloader", **nanoset}
    sections = {
        "inline": {**dataset, "outputs": {"position_ids": "document"}, "nanotron": {"model_inputs": {}}},
        "file": {"type": "conceptloader", "config": str(folder / "mixture.yaml")},
        "nanoset": nanoset,
        "nanoset of ours": {**ours, "dataset_folder": tokens},
        "nanoset with limits": {**ours, "dataset_max_tokens": [9]},
        "nanoset offloaded": {**ours, "dataset_folder": ["s3://bucket/web"], "dataset_read_path": [tokens]},
        "nanoset of fewer copies": {**ours, "dataset_folder": ["s3://b/a", "s3://b/b"], "dataset_read_path": [tokens]},
        "nanoset of a part": {**ours, "dataset_folder": tokens, "dataset_read_path": str(folder / "nothing")},
        "nanoset of nothing": {"type": "conceptloader", "dataset_folder": str(folder / "nothing")},
        "nanoset of other weights": {"type": "conceptloader", "dataset_folder": ["a", "b"], "dataset_weights": [1]},
        "hub": {"hf_dataset_or_datasets": "some/dataset"},
        "dummy": None,
        "misspelled": {**dataset, "wieghts": "sizes"},
        "misspelled adapter": {**dataset, "nanotron": {"loss_per_datset": True}},
        "misspelled type": {**dataset, "type": "conceptlaoder"},
        "bad stage": {**dataset, "nanotron": {"model_inputs": {"concepts_ids": "middle"}}},
        "weights": {**dataset, "outputs": {"loss_weight": "weight"}},
        "both": {**dataset, "config": "mixture.yaml"},
        "wrong file": {"type": "conceptloader", "config": str(folder / "wrong.yaml")},
    }
    configs = {name: support.config(folder / "c", section) for name, section in sections.items()}
    (folder / "configs.json").write_text(json.dumps(configs))
    support.torchrun(folder, support.Layout(), [str(SCRIPT), "configs.json"])
    return json.loads((folder / "found.json").read_text())


def test_ours_round_trips(parsed, dataset):
    """Saved by nanotron and read again it is equal, and holds no keys but those that were written."""
    for name in ("inline", "file"):
        assert parsed[name]["class"] == "ConceptloaderDatasetsArgs"
        assert parsed[name]["again"] == parsed[name]["saved"]
    saved = parsed["inline"]["saved"]
    assert saved["datasets"] == dataset["datasets"]
    assert {key for key, value in saved.items() if value is not None} == {*dataset, "outputs", "nanotron"}


def test_stock_types_still_work(parsed):
    assert parsed["nanoset of ours"]["class"] == "ConceptloaderDatasetsArgs"
    assert parsed["nanoset of ours"]["saved"]["datasets"]["tokens"]["weight"] == 1
    offloaded = parsed["nanoset offloaded"]["saved"]["datasets"]
    assert offloaded["web"].keys() == parsed["nanoset of ours"]["saved"]["datasets"]["tokens"].keys()
    assert parsed["nanoset"]["class"] == "NanosetDatasetsArgs"
    assert parsed["hub"]["class"] == "PretrainDatasetsArgs"
    assert parsed["dummy"]["class"] == "NoneType"


SAID = """
misspelled | wieghts | unknown key 'wieghts'
misspelled adapter | nanotron.loss_per_datset | unknown key 'loss_per_datset'
misspelled type | type | 'conceptlaoder'
nanoset with limits | dataset_max_tokens | -
nanoset of fewer copies | dataset_read_path | 1
nanoset of a part | dataset_read_path | without 00000.ds
nanoset of nothing | dataset_folder: / | -
nanoset of other weights | dataset_weights | 1
bad stage | nanotron.model_inputs.concepts_ids | 'middle'
weights | outputs.loss_weight | nanotron.model_inputs does not name
both | - | config and datasets
wrong file | config | blokc
"""


@pytest.mark.parametrize(("name", "path", "found"), cells(SAID))
def test_our_message(parsed, name, path, found):
    said = parsed[name]["error"]
    assert said.startswith(f"data_stages[0].data.dataset{path and '.'}{path}")
    assert found in said
