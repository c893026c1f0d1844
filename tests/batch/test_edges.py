"""Edges of batches: a track without a single span, tracks whose arrays would take the names of others."""

from pathlib import Path
from typing import Any

import pytest

import conceptloader as cl
from conceptloader.errors import ConfigError


@pytest.mark.parametrize("engine", ["compiled", "reference"])
def test_a_track_without_spans_has_room_for_one(tmp_path: Path, engine: str) -> None:
    build = cl.create_build(tmp_path / "ds", cl.BuildOptions(tracks={"concepts": cl.TrackOptions()}))
    with build.shard(0) as writer:
        writer.add_document(list(range(20)))
    cl.finalize(tmp_path / "ds")
    config: dict[str, Any] = {
        "seq_len": 4, "datasets": {"a": {"path": str(tmp_path / "ds")}}, "concepts": {"concepts": {}},
        "loader": {"engine": engine},
    }  # fmt: skip
    with cl.make_dataloader(config, micro_batch_size=2) as loader:
        batch = next(iter(loader))
    assert batch["concepts_spans"].shape == (2, 1, 2)
    assert batch["concepts_ids"].shape == (2, 1, 1)
    assert batch["concepts_num_spans"].tolist() == [0, 0]
    assert set(batch["concepts_span_index"].flatten().tolist()) == {-1}


def test_two_arrays_of_one_name_are_refused(tmp_path: Path) -> None:
    build = cl.create_build(tmp_path / "ds", cl.BuildOptions(tracks={"position": cl.TrackOptions()}))
    with build.shard(0) as writer:
        writer.add_document(list(range(20)))
    cl.finalize(tmp_path / "ds")
    config = {"seq_len": 4, "datasets": {"a": {"path": str(tmp_path / "ds")}}, "concepts": {"position": {}}}
    with pytest.raises(ConfigError, match="two arrays of a batch would be called position_ids; rename a track"):
        cl.make_dataloader(config, micro_batch_size=2)
