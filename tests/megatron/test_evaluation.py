"""Evaluation beside a training with concepts: the tensors of the training, at the batch sizes that Megatron takes."""

import pytest
import torch
import yaml

import conceptloader as cl
from conceptloader.errors import ConfigError
from conceptloader.integrations.megatron_lm.past import MEGATRON_LM
from tests.corpora.for_megatron import EOD, write_config, write_datasets
from tests.corpora.small import written
from tests.megatron.stock import Tokenizer, data_of, dataset_config
from tests.mixing import learned
from tests.raises import cells, raises

pytestmark = pytest.mark.usefixtures("one_process")
LENGTH = 16


def write_one(path, spans, tokens=400, **tokenizer):
    """A dataset of one document; spans: of track topic, None for no such track."""
    known = {"name": "none", "vocab_size": 256, "eos_id": EOD, **tokenizer}
    document = [*range(100), *([7] * (tokens - 100))], {} if spans is None else {"topic": spans}
    tracks = {} if spans is None else {"topic": {"encoding": "spans"}}
    written(path, [document], tokenizer=cl.writing.Tokenizer(**known), tracks=tracks)


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    folder = write_datasets(tmp_path_factory.mktemp("data"))
    write_one(folder / "dense", [(i, i + 1, [1, 2, 3, 4]) for i in range(400)])  # a span a token, more than elsewhere
    write_one(folder / "bare", None)
    write_one(folder / "wide", None, vocab_size=300)
    write_one(folder / "other", None, eos_id=9)
    write_config(folder / "train.yaml")
    write_config(folder / "dense.yaml", datasets={"dense": {"path": "dense", "weight": 1}})
    return folder


def evaluation(folder, *names, **changes):
    datasets = {name: {"path": name, "weight": 1} for name in names}
    return write_config(folder / "valid.yaml", datasets=datasets, **changes)


@pytest.mark.parametrize("concepts", [{}, {"topic": {}}, {"topic": {"max_spans": 3, "overflow": "truncate"}}])
def test_batches_of_all_splits_have_the_same_tensors(folder, concepts):
    """Whatever the evaluation's own file says of tracks, and whether its data have them."""
    valid = evaluation(folder, "dense", "bare", tracks=concepts)
    data = data_of(folder / "train.yaml", dataset_config(LENGTH), [64, 20, 0], valid=valid)
    train, evaluated, _ = data.datasets()
    assert isinstance(train, torch.utils.data.Dataset)
    shapes = {name: (tensor.shape, tensor.dtype) for name, tensor in train[0].items()}
    assert shapes["topic_spans"][0] == (LENGTH, 2)
    seen = set()
    for k in range(20):
        sample = evaluated[k]
        assert {name: (tensor.shape, tensor.dtype) for name, tensor in sample.items()} == shapes
        spans = int(sample["topic_num_spans"])
        assert spans == (0 if int(sample["dataset_id"]) == 0 else LENGTH)  # bare, dense
        seen.add(spans)
    assert seen == {0, LENGTH}


def test_a_track_for_evaluation_alone_is_refused(folder):
    bare = write_config(folder / "no concepts.yaml", tracks={})
    valid = evaluation(folder, "dense", tracks={"topic": {}})
    with raises(ConfigError, "tracks.topic", "a track of the evaluation configuration only"):
        data_of(bare, dataset_config(LENGTH), valid=valid)


TRAINING = """
continue_from | {continue_from: elsewhere}
skip | {skip: [{at: 8, count: 8}]}
exclude | {exclude: [{at: 0, file: ids.txt}]}
phases[1] | {phases: [{at: 0, weights: {dense: 1}}, {at: 8, weights: {dense: 1}}]}
datasets.dense.max_epochs | {datasets: {dense: {path: dense, weight: 1, max_epochs: 1}}}
"""


@pytest.mark.parametrize(("key", "changes"), cells(TRAINING))
def test_what_belongs_to_a_training_is_refused(folder, key, changes):
    """It had no effect."""
    changes = yaml.safe_load(changes)
    datasets = {"dense": {"path": "dense", **({} if "phases" in changes else {"weight": 1})}}
    for split in ("valid", "test"):
        path = write_config(folder / "valid.yaml", **{"datasets": datasets, **changes})
        files = {"valid": folder / "dense.yaml", split: path}
        with raises(ConfigError, key, f"--conceptloader-{split}-config", fix=f"omit {key}"):
            data_of(folder / "train.yaml", dataset_config(LENGTH), [64, 8, 8], **files)


def test_micro_batches_of_evaluation_have_any_size(folder):
    """Megatron evaluates without gradients, full validation one sample at a time; in training a size is refused."""
    data = data_of(
        folder / "train.yaml",
        dataset_config(LENGTH),
        [64, 20, 0],
        micro_batch_size=4,
        valid=evaluation(folder, "dense"),
    )
    for size in (1, 3, 4):
        dataset = data.datasets()[1]
        loader = torch.utils.data.DataLoader(dataset, batch_size=size)
        iterator = type(data.iterator(dataset))(iter(loader))
        with torch.no_grad():
            next(iterator)
            found = data.concepts(iterator)
            assert found["topic_spans"].shape == (size, LENGTH, 2)
            assert data.get_batch(type(iterator)(iter(loader)))["tokens"].shape == (size, LENGTH)
        next(iterator)
        if size == 4:
            assert data.concepts(iterator)["topic_spans"].shape[0] == size
        else:
            with raises(ConfigError, fix="on every rank"):
                data.concepts(iterator)


@pytest.mark.parametrize("where", ["train", "valid"])
def test_data_of_another_tokenizer_are_refused(folder, monkeypatch, where):
    config = dataset_config(LENGTH)
    monkeypatch.setattr(Tokenizer, "eod", EOD)

    def data(name, **more):
        files = {"train": folder / "train.yaml", "valid": evaluation(folder, "dense")}
        files[where] = write_config(folder / "wrong.yaml", datasets={name: {"path": name}}, tracks={})
        if where == "train":
            files["valid"] = evaluation(folder, "bare", tracks={})
        return data_of(files["train"], config, [8, 8, 0], valid=files["valid"], **more)

    data("wide").check_tokenizer(300)
    data("wide").check_tokenizer(None)
    with raises(ConfigError, "datasets.wide", "300 tokens", "at most the 299 of the model's"):
        data("wide").check_tokenizer(299)
    with pytest.raises(
        ConfigError, match=rf"datasets\.other: .* end with 9, expected {EOD}, .*--conceptloader-allow-changed tok"
    ):
        data("other").check_tokenizer(300)
    data("other", accept=["tokenizer"]).check_tokenizer(300)


@pytest.mark.parametrize("key", ["replay", "mixing"])
def test_evaluation_of_a_mixture_that_changes_is_that_of_sample_0(key, tmp_path):
    """Of one that learns, and of its replay, which is phases as any."""
    config = learned.run(tmp_path, (1, 4, 9), seed=5, temperature=2)
    if key == "mixing":
        config |= {"replay": None, "mixing": {"odm": {}}}
    else:
        config["datasets"] = {name: {"path": entry["path"]} for name, entry in config["datasets"].items()}
    data = data_of(config, dataset_config(32), (8, 8, 0), split="80,20,0", entry=MEGATRON_LM)
    ((first,),) = [valid.blend.spec.segments for valid in data.valid]
    assert first.weights["hard"] / first.weights["easy"] == pytest.approx(2)  # of which the root was taken once
    whole = data_of(config, dataset_config(32), (8, None, 0), split="80,20,0", entry=MEGATRON_LM)  # --full-validation
    assert whole.valid[0].blend.spec.order == "sequential"
