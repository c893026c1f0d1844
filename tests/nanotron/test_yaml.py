"""Our dataset section in nanotron's own config classes. Needs NANOTRON_SRC."""

import json
from pathlib import Path

import pytest
import yaml

from tests.corpora.token_files import write_datatrove
from tests.nanotron import support
from tests.raises import cells

pytestmark = [pytest.mark.usefixtures("nanotron_src"), pytest.mark.timeout(400), pytest.mark.slow]
SCRIPT = Path(__file__).parent / "yaml_script.py"


# Sections that are refused: what they are added to, where, what is found.
SAID = """
dataset | {wieghts: sizes} | wieghts | unknown key 'wieghts'
dataset | {nanotron: {loss_per_datset: true}} | nanotron.loss_per_datset | unknown key 'loss_per_datset'
dataset | {type: conceptlaoder} | type | 'conceptlaoder'
nanoset | {dataset_max_tokens: [9]} | dataset_max_tokens | -
nanoset | {dataset_folder: ['s3://b/a', 's3://b/b'], dataset_read_path: [HERE/tokens]} | dataset_read_path | 1
nanoset | {dataset_folder: HERE/tokens, dataset_read_path: HERE/nothing} | dataset_read_path | without 00000.ds
nanoset | {dataset_folder: HERE/nothing} | dataset_folder: / | -
nanoset | {dataset_folder: [a, b], dataset_weights: [1]} | dataset_weights | 1
dataset | {nanotron: {model_inputs: {concepts_ids: middle}}} | nanotron.model_inputs.concepts_ids | 'middle'
dataset | {outputs: {loss_weight: weight}} | outputs.loss_weight | nanotron.model_inputs does not name
dataset | {config: mixture.yaml} | - | config and datasets
- | {type: conceptloader, config: HERE/wrong.yaml} | config | blokc
"""
GOOD = """
dataset | {outputs: {position_ids: document}, nanotron: {model_inputs: {}}}
- | {type: conceptloader, config: HERE/mixture.yaml}
nanoset | {dataset_folder: HERE/tokens}
nanoset | {dataset_folder: ['s3://bucket/web'], dataset_read_path: [HERE/tokens]}
- | {dataset_folder: HERE, vocab_size: 250, tokenizer_name: conceptloader/none}
- | {hf_dataset_or_datasets: some/dataset}
"""


@pytest.fixture(scope="module")
def parsed(tmp_path_factory, dataset, nanotron_src):
    """What yaml_script.py found for each of these dataset sections, and for none, all in one process."""
    folder = tmp_path_factory.mktemp("yaml")
    whole = {k: v for k, v in dataset.items() if k != "type"}
    (folder / "mixture.yaml").write_text(json.dumps(whole))
    (folder / "wrong.yaml").write_text(json.dumps({**whole, "blokc": 1}))
    (folder / "tokens").mkdir()
    write_datatrove(folder / "tokens", "00000.ds", [[*range(200)]])
    nanoset = {"type": "conceptloader", "vocab_size": support.VOCABULARY, "tokenizer_name": "conceptloader/none"}
    bases = {"dataset": dataset, "nanoset": {**nanoset, "dataset_folder": str(folder)}, "": {}}
    sections = {
        more: {**bases[base], **yaml.safe_load(more.replace("HERE", str(folder)))}
        for base, more, *_ in (*cells(GOOD), *cells(SAID))
    }
    configs = {name: support.config(folder / "c", section) for name, section in {**sections, "none": None}.items()}
    (folder / "configs.json").write_text(json.dumps(configs))
    support.torchrun(folder, support.Layout(), [str(SCRIPT), "configs.json"])
    return json.loads((folder / "found.json").read_text())


def test_ours_round_trips_and_stock_types_still_work(parsed, dataset):
    """Saved by nanotron and read again it is equal, and holds no keys but those that were written."""
    found = [parsed[more] for _, more in cells(GOOD)]
    assert [one["class"] for one in found] == [*["ConceptloaderDatasetsArgs"] * 4, "NanosetDatasetsArgs",
                                               "PretrainDatasetsArgs"]  # fmt: skip
    assert parsed["none"]["class"] == "NoneType"
    inline, file, ours, offloaded = (one["saved"] for one in found[:4])
    assert [one["again"] for one in found[:2]] == [inline, file]
    assert inline["datasets"] == dataset["datasets"]
    assert {key for key, value in inline.items() if value is not None} == {*dataset, "outputs", "nanotron"}
    assert ours["datasets"]["tokens"]["weight"] == 1
    assert offloaded["datasets"]["web"].keys() == ours["datasets"]["tokens"].keys()


@pytest.mark.parametrize(("_", "section", "path", "found"), cells(SAID))
def test_our_message(parsed, _, section, path, found):
    said = parsed[section]["error"]
    assert said.startswith(f"data_stages[0].data.dataset{path and '.'}{path}")
    assert found in said
