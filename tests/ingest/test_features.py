"""Features of `datasets` (names of labels, JSON): builds take what `Dataset[i]` would give, not what is stored."""

from pathlib import Path
from typing import Any

import pytest

from conceptloader.ingest.records.inputs import find_sources, read_rows


def test_rows_as_datasets_gives_them(tmp_path: Path) -> None:
    datasets = pytest.importorskip("datasets", reason="datasets is not installed: `make test-trainers` has it")
    names = datasets.ClassLabel(names=["PER", "LOC"])
    value, text = datasets.Value("int32"), datasets.Value("string")
    features = datasets.Features(
        {
            "text": text, "label": names, "labels": datasets.List(names), "any": datasets.Json(),
            "spans": datasets.List({"start": value, "end": value, "label": names, "more": datasets.Json()}),
        }
    )  # fmt: skip
    span = {"start": 0, "end": 1, "label": 1, "more": {"x": None}}
    rows = [{"text": "a", "label": 0, "labels": [1, 0], "any": {"k": [1]}, "spans": [span, span]}] * 3
    rows += [{"text": "b", "label": None, "labels": [], "any": None, "spans": []}]
    ds = datasets.Dataset.from_list(rows, features=features)
    ds.save_to_disk(str(tmp_path / "saved"))
    ds.to_parquet(str(tmp_path / "a.parquet"))

    def named(ids: Any) -> Any:
        return None if ids is None else [*map(named, ids)] if isinstance(ids, list) else names.int2str(ids)

    wanted = [
        {**row, "label": named(row["label"]), "labels": named(row["labels"]),
         "spans": [{**span, "label": named(span["label"])} for span in row["spans"]]}
        for row in ds
    ]  # fmt: skip
    for path in (tmp_path / "saved", tmp_path / "a.parquet"):
        assert [row for source in find_sources([path]) for _, row in read_rows(source, None, pytest.fail)] == wanted
