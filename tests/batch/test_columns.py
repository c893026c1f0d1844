"""`outputs.columns`: values for each token in batches, and what is refused at launch."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import conceptloader as cl
from conceptloader.batch.open import open_reader
from conceptloader.errors import ConfigError
from conceptloader.testing import random_documents, write_dataset
from tests.corpora.columns import add_column, random_items, widened
from tests.raises import raises

Array = np.ndarray[Any, np.dtype[Any]]


def config(path: Path, columns: dict[str, Any], **keys: Any) -> dict[str, Any]:
    outputs = {"columns": columns, **keys.pop("outputs", {})}
    return {"seq_len": 16, "datasets": {"a": {"path": str(path)}}, "outputs": outputs, **keys}


def dataset(path: Path, **options: Any) -> cl.Dataset:
    write_dataset(path, random_documents(60, seed=3), shards=3, **options)
    return cl.open_dataset(path)


@pytest.mark.parametrize(
    ("dtype", "wide", "stored"),
    [
        ("u1", torch.uint8, torch.uint8),
        ("u2", torch.int32, torch.uint16),
        ("u4", torch.int64, torch.uint32),
        ("i2", torch.int16, torch.int16),
        ("f2", torch.float16, torch.float16),
        ("f8", torch.float64, torch.float64),
        ("bf16", torch.float32, torch.bfloat16),
    ],
)
def test_types_that_torch_does_not_compute_with_are_widened(tmp_path: Path, dtype: str, wide: Any, stored: Any) -> None:
    ds = dataset(tmp_path / "ds")
    items = random_items(np.random.default_rng(1), ds.num_tokens, dtype, (3, 2))
    add_column(tmp_path / "ds", "x", items, dtype)
    add_column(tmp_path / "ds", "y", items, dtype)
    chosen = {"x": "labels", "y": {"at": "inputs", "dtype": "stored"}}
    with cl.make_dataloader(config(tmp_path / "ds", chosen), micro_batch_size=4) as loader:
        batch = next(iter(loader))
    assert (batch["x"].dtype, batch["y"].dtype) == (wide, stored)
    assert batch["x"].shape == batch["y"].shape == (4, 16, 3, 2)
    tokens = ds.read(0, ds.num_tokens)["tokens"]
    for k in range(4):
        rows = [t for t in range(len(tokens) - 16) if np.array_equal(tokens[t : t + 16], batch["input_ids"][k])]
        wanted = [torch.from_numpy(widened(items[t : t + 17], dtype)).double() for t in rows]
        assert any(
            torch.equal(one[1:], batch["x"][k].double()) and torch.equal(one[:-1], batch["y"][k].double())
            for one in wanted
        )


def test_padding_and_what_is_taken_out_are_blank(tmp_path: Path) -> None:
    """In packs, at labels: the last input of a document has none, and padding has none."""
    ds = dataset(tmp_path / "ds")
    items = random_items(np.random.default_rng(2), ds.num_tokens, "f2", (2,))
    add_column(tmp_path / "ds", "probs", items)
    keys: dict[str, Any] = {"packing": {"bins": 4}, "outputs": {"document_ids": True}}
    keys["exclude"] = [{"at": 0, "dataset": "a", "ids": ["doc-3"], "take": "own"}]
    if ds.document_id(3) is None:
        keys["exclude"] = [{"at": 0, "dataset": "a", "tokens": list(ds.document_range(3)), "take": "own"}]
    for missing in (None, -1.5):
        options = {"at": "labels", **({} if missing is None else {"missing": missing})}
        reader = open_reader(cl.open_blend(config(tmp_path / "ds", {"probs": options}, **keys)))
        batch = reader.read(np.arange(24, dtype=np.uint64))
        blank = (batch["probs"] == (missing or 0)).all(-1)
        assert np.array_equal(blank, batch["loss_mask"] == 0)
        assert 0 < blank.sum() < blank.size


def launch(path: Path, columns: dict[str, Any], **keys: Any) -> None:
    open_reader(cl.open_blend(config(path, columns, **keys)))


def test_what_does_not_fit_is_an_error_at_launch(tmp_path: Path) -> None:
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


def test_tokens_without_a_value_are_an_error_unless_none_is_a_label_with_loss(tmp_path: Path) -> None:
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


def test_ranks_compare_the_columns_that_they_read(tmp_path: Path) -> None:
    """Copies on the disks of nodes may differ."""
    ds = dataset(tmp_path / "ds")
    facts = []
    for number in (1, 2):
        add_column(tmp_path / "ds", "ids", np.full((ds.num_tokens, 3), number, "u4"))
        facts += [cl.open_blend(config(tmp_path / "ds", columns)).facts() for columns in ({"ids": "labels"}, {})]
    assert facts[0] != facts[2]
    assert facts[1] == facts[3]


def test_a_resume_warns_of_other_values(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    ds = dataset(tmp_path / "ds")
    state = None
    for number in (1, 1, 2):
        assert "outputs.columns" not in caplog.text
        add_column(tmp_path / "ds", "ids", np.full((ds.num_tokens, 3), number, "u4"))
        loader = cl.make_dataloader(config(tmp_path / "ds", {"ids": "labels"}), micro_batch_size=2)
        if state is not None:
            loader.load_state_dict(state)
        next(iter(loader))
        state = loader.state_dict()
    assert "outputs.columns.ids: dataset a has other values than at the checkpoint" in caplog.text


def test_values_of_labels_and_of_inputs_are_not_mixed(tmp_path: Path) -> None:
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
