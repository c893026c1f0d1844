"""`outputs.columns`: values for each token in batches, and what is refused at launch."""

import numpy as np
import yaml

import conceptloader as cl
from conceptloader.errors import ConfigError
from conceptloader.loader.batch.open import open_reader
from conceptloader.testing import random_documents, write_dataset
from tests.corpora.columns import add_column, random_items
from tests.raises import cells, raises


def config(path, columns, **keys):
    outputs = {"columns": columns, **keys.pop("outputs", {})}
    return {"seq_len": 16, "datasets": {"a": {"path": str(path)}}, "outputs": outputs, **keys}


def dataset(path, **options):
    write_dataset(path, random_documents(60, seed=3), shards=3, **options)
    return cl.open_dataset(path)


def launch(path, columns, **keys):
    open_reader(cl.open_blend(config(path, columns, **keys)))


UNFIT = """
ds | {columns: {idz: labels}} | outputs.columns.idz | an unknown column 'idz' | did you mean ids
ds | {columns: {ids: {missing: 0.5}}} | outputs.columns.ids.missing | 0.5 | -
ds | {columns: {ids: labels}, fields: {ids: labels}} | outputs | two arrays of a batch would be called ids | -
ds other | {columns: {ids: labels}} | outputs.columns.ids | no such column in dataset other | missing: -1
ds other | {columns: {ids: {missing: -1, dtype: stored}}} | outputs.columns.ids.missing | -1 | -
ds third | {columns: {ids: {missing: -1}}} | outputs.columns.ids | u4[3] in dataset ds, but u4[2] in third | -
"""


def test_what_does_not_fit_is_an_error_at_launch(tmp_path):
    ds, *_ = [dataset(tmp_path / name) for name in ("ds", "other", "third")]
    add_column(tmp_path / "ds", "ids", random_items(np.random.default_rng(3), ds.num_tokens, "u4", (3,)))
    add_column(tmp_path / "third", "ids", np.ones((ds.num_tokens, 2), "u4"))
    for names, outputs, path, found, fix in cells(UNFIT):
        datasets = {name: {"path": str(tmp_path / name), "weight": 1} for name in names.split()}
        with raises(ConfigError, path, found, fix=fix):
            launch("", {}, datasets=datasets, outputs=yaml.safe_load(outputs))
    two = {name: {"path": str(tmp_path / name), "weight": 1} for name in ("ds", "other")}
    launch("", {"ids": {"missing": -1}}, datasets=two)


MISSING = """
first | {columns: {first: labels}} | -
starts | {columns: {starts: labels}} | {starts} tokens without a value ({starts} begin documents, 0 are in shards
first | {columns: {first: inputs}} | 1 tokens without a value
starts | {columns: {starts: labels}, mask_document_boundaries: true} | -
starts, packs | {columns: {starts: labels}} | -
further, packs | {columns: {further: labels}} | {further} tokens without a value
further, packs | {columns: {further: {missing: -1}}} | -
absent, packs | {columns: {absent: labels}} | {absent} tokens without a value
absent, packs | {columns: {absent: {missing: -1}}} | -
"""


def test_tokens_without_a_value_are_an_error_unless_none_is_a_label_with_loss(tmp_path):
    ds = dataset(tmp_path / "ds")
    items = random_items(np.random.default_rng(4), ds.num_tokens, "u2", (2,))
    starts = [ds.document_range(k)[0] for k in range(len(ds))]
    lacking = {"first": [0], "starts": starts, "further": [*starts, starts[5] + 1]}
    for name, tokens in lacking.items():
        add_column(tmp_path / "ds", name, items, missing=np.isin(np.arange(ds.num_tokens), tokens))
    add_column(tmp_path / "ds", "absent", items, without=[1])
    numbers = {**{name: len(tokens) for name, tokens in lacking.items()}, "absent": np.diff(ds.shard_starts)[1]}
    for case, outputs, found in cells(MISSING):
        name, _, packs = case.partition(", ")
        more = {"outputs": yaml.safe_load(outputs), **({"packing": {"bins": 4}} if packs else {})}
        if not found:
            launch(tmp_path / "ds", {}, **more)
            continue
        with raises(ConfigError, f"outputs.columns.{name}", found.format(**numbers), "a value for each token"):
            launch(tmp_path / "ds", {}, **more)


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
