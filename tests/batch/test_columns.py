"""`outputs.columns`: values for each token in batches, and what is refused at launch."""

import numpy as np

import conceptloader as cl
from conceptloader.errors import ConfigError
from conceptloader.loader.batch.open import open_reader
from conceptloader.testing import random_documents, write_dataset
from tests.corpora.columns import add_column, random_items
from tests.raises import raises


def config(path, columns, **keys):
    outputs = {"columns": columns, **keys.pop("outputs", {})}
    return {"seq_len": 16, "datasets": {"a": {"path": str(path)}}, "outputs": outputs, **keys}


def dataset(path, **options):
    write_dataset(path, random_documents(60, seed=3), shards=3, **options)
    return cl.open_dataset(path)


def launch(path, columns, **keys):
    open_reader(cl.open_blend(config(path, columns, **keys)))


def test_what_does_not_fit_is_an_error_at_launch(tmp_path):
    ds = dataset(tmp_path / "ds")
    dataset(tmp_path / "other")
    add_column(tmp_path / "ds", "ids", random_items(np.random.default_rng(3), ds.num_tokens, "u4", (3,)))
    two = {"datasets": {name: {"path": str(tmp_path / name), "weight": 1} for name in ("ds", "other")}}
    with raises(ConfigError, "outputs.columns.idz", "an unknown column 'idz'", "ids", fix="did you mean ids"):
        launch(tmp_path / "ds", {"idz": "labels"})
    with raises(ConfigError, "outputs.columns.ids", "no such column in dataset other", fix="missing: -1"):
        launch(tmp_path / "ds", {"ids": "labels"}, **two)
    launch(tmp_path / "ds", {"ids": {"missing": -1}}, **two)
    with raises(ConfigError, "outputs.columns.ids.missing", "-1", "uint32"):
        launch(tmp_path / "ds", {"ids": {"missing": -1, "dtype": "stored"}}, **two)
    with raises(ConfigError, "outputs.columns.ids.missing", "0.5", "int64"):
        launch(tmp_path / "ds", {"ids": {"missing": 0.5}})
    add_column(tmp_path / "other", "ids", np.ones((ds.num_tokens, 2), "u4"))
    with raises(ConfigError, "outputs.columns.ids", "u4[3] in dataset ds, but u4[2] in other", "same type and shape"):
        launch(tmp_path / "ds", {"ids": {"missing": -1}}, **two)
    with raises(ConfigError, "outputs", "two arrays of a batch would be called ids"):
        launch(tmp_path / "ds", {"ids": "labels"}, outputs={"fields": {"ids": "labels"}})


def test_tokens_without_a_value_are_an_error_unless_none_is_a_label_with_loss(tmp_path):
    ds = dataset(tmp_path / "ds")
    items = random_items(np.random.default_rng(4), ds.num_tokens, "u2", (2,))
    starts = [ds.document_range(k)[0] for k in range(len(ds))]
    path, missing = tmp_path / "ds", np.zeros(ds.num_tokens, np.bool_)
    missing[0] = True
    add_column(path, "first", items, missing=missing)
    launch(path, {"first": "labels"})  # no window's label
    missing[starts] = True
    add_column(path, "starts", items, missing=missing)
    found = f"{missing.sum()} tokens without a value ({missing.sum()} begin documents, 0 are in shards"
    with raises(ConfigError, "outputs.columns.starts", found, "a value for each token"):
        launch(path, {"starts": "labels"})
    with raises(ConfigError, "outputs.columns.first", "1 tokens without a value"):
        launch(path, {"first": "inputs"})
    launch(path, {"starts": "labels"}, outputs={"mask_document_boundaries": True})
    launch(path, {"starts": "labels"}, packing={"bins": 4})
    missing[starts[5] + 1] = True
    add_column(path, "further", items, missing=missing)
    add_column(path, "absent", items, without=[1])
    for name, number in (("further", missing.sum()), ("absent", np.diff(ds.shard_starts)[1])):
        with raises(ConfigError, f"outputs.columns.{name}", f"{number} tokens without a value"):
            launch(path, {name: "labels"}, packing={"bins": 4})
        launch(path, {name: {"missing": -1}}, packing={"bins": 4})


def test_ranks_compare_the_columns_that_they_read(tmp_path):
    """Copies on the disks of nodes may differ."""
    ds = dataset(tmp_path / "ds")
    facts = []
    for number in (1, 2):
        add_column(tmp_path / "ds", "ids", np.full((ds.num_tokens, 3), number, "u4"))
        facts += [cl.open_blend(config(tmp_path / "ds", columns)).facts() for columns in ({"ids": "labels"}, {})]
    assert facts[0] != facts[2]
    assert facts[1] == facts[3]


def test_values_of_labels_and_of_inputs_are_not_mixed(tmp_path):
    for name, at in (("a", "labels"), ("b", "inputs")):
        dataset(tmp_path / name)
        loader = cl.batches({"seq_len": 16, "datasets": {"x": {"path": str(tmp_path / name)}}}, micro_batch_size=4)
        with cl.column_writer(tmp_path / name, "ids", "u4", 3, at=at, loader=loader) as writer:
            writer.write(next(iter(loader)), np.ones((4, 16, 3), "u4"))
            writer.finish(partial=True)
    both = {name: {"path": str(tmp_path / name), "weight": 1} for name in "ab"}
    outputs = {"columns": {"ids": {"at": "labels", "missing": 0}}}
    with raises(ConfigError, "outputs.columns.ids", "labels in dataset a, inputs in dataset b"):
        cl.make_dataloader({"seq_len": 16, "datasets": both, "outputs": outputs}, micro_batch_size=2)
