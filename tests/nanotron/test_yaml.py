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
    member = dict(next(iter(dataset["datasets"].values())))
    (folder / "tokens").mkdir()
    write_datatrove(folder / "tokens", "00000.ds", [[*range(200)]])
    nanoset = {"dataset_folder": str(folder), "vocab_size": support.VOCABULARY, "tokenizer_name": "conceptloader/none"}
    sections = {
        "inline": {**dataset, "outputs": {"position_ids": "document"}, "nanotron": {"model_inputs": {}}},
        "file": {"type": "conceptloader", "config": str(folder / "mixture.yaml")},
        "nanoset": nanoset,
        "nanoset of ours": {"type": "conceptloader", **nanoset, "dataset_folder": str(folder / "tokens")},
        "nanoset with limits": {"type": "conceptloader", **nanoset, "dataset_max_tokens": [9]},
        "nanoset offloaded": {
            "type": "conceptloader",
            **nanoset,
            "dataset_folder": ["s3://bucket/web"],
            "dataset_read_path": [str(folder / "tokens")],
        },
        "nanoset of fewer copies": {
            "type": "conceptloader",
            **nanoset,
            "dataset_folder": ["s3://bucket/a", "s3://bucket/b"],
            "dataset_read_path": [str(folder / "tokens")],
        },
        "nanoset of a part": {
            "type": "conceptloader",
            **nanoset,
            "dataset_folder": str(folder / "tokens"),
            "dataset_read_path": str(folder / "nothing"),
        },
        "nanoset of nothing": {"type": "conceptloader", "dataset_folder": str(folder / "nothing")},
        "nanoset of other weights": {"type": "conceptloader", "dataset_folder": ["a", "b"], "dataset_weights": [1]},
        "hub": {"hf_dataset_or_datasets": "some/dataset"},
        "dummy": None,
        "misspelled": {**dataset, "wieghts": "sizes"},
        "misspelled below": {**dataset, "datasets": {"web": {**member, "wieght": 1}}},
        "misspelled adapter": {**dataset, "nanotron": {"loss_per_datset": True}},
        "misspelled type": {**dataset, "type": "conceptlaoder"},
        "bad stage": {**dataset, "nanotron": {"model_inputs": {"concepts_ids": "middle"}}},
        "weights": {**dataset, "outputs": {"loss_weight": "weight"}},
        "bad value": {**dataset, "block": 0},
        "both": {**dataset, "config": "mixture.yaml"},
        "wrong file": {"type": "conceptloader", "config": str(folder / "wrong.yaml")},
    }
    configs = {name: support.config(folder / "c", section) for name, section in sections.items()}
    (folder / "configs.json").write_text(json.dumps(configs))
    result = support.torchrun(folder, 1, [str(SCRIPT), "configs.json"])
    assert result.returncode == 0, result.output[-4000:]
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


DATASET = "data_stages[0].data.dataset"


SAID = """
misspelled | data_stages[0].data.dataset.wieghts | unknown key 'wieghts'
misspelled below | data_stages[0].data.dataset.datasets.web.wieght | unknown key 'wieght'
misspelled adapter | data_stages[0].data.dataset.nanotron.loss_per_datset | unknown key 'loss_per_datset'
misspelled type | data_stages[0].data.dataset.type | 'conceptlaoder'
nanoset with limits | data_stages[0].data.dataset.dataset_max_tokens | -
nanoset of fewer copies | data_stages[0].data.dataset.dataset_read_path | 1
nanoset of a part | data_stages[0].data.dataset.dataset_read_path | without 00000.ds
nanoset of nothing | data_stages[0].data.dataset.dataset_folder: / | -
nanoset of other weights | data_stages[0].data.dataset.dataset_weights | 1
bad stage | data_stages[0].data.dataset.nanotron.model_inputs.concepts_ids | 'middle'
weights | data_stages[0].data.dataset.outputs.loss_weight | nanotron.model_inputs does not name
bad value | data_stages[0].data.dataset.block | 0
both | data_stages[0].data.dataset | config and datasets
wrong file | data_stages[0].data.dataset.config | blokc
"""


@pytest.mark.parametrize(("name", "path", "found"), cells(SAID))
def test_our_message(parsed, name, path, found):
    said = parsed[name]["error"]
    assert said.startswith(path)
    assert found in said
