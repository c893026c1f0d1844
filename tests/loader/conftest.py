"""A small configuration over two datasets."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.corpora.known import Recipe, build


@pytest.fixture(scope="session")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("data")
    rng = np.random.default_rng(3)
    build(path / "a", Recipe(shards=(40, 30), encodings={"concepts": "spans"}), rng)
    build(path / "b", Recipe(shards=(30,), encodings={"concepts": "dense"}), rng)
    build(path / "pairs", Recipe(shards=(20, 9), encodings={}, mode="document", loss_field=True), rng)
    return path


@pytest.fixture
def config(data: Path) -> dict[str, Any]:
    """Plain data for load_config; tests change their copy."""
    return {
        "seed": 5,
        "seq_len": 16,
        "datasets": {
            "a": {"path": str(data / "a"), "weight": 0.7},
            "b": {"path": str(data / "b"), "weight": 0.3},
        },
        "phases": [{"at": 70, "weights": {"a": 0.2, "b": 0.8}}],
        "outputs": {"document_ids": True, "cu_seqlens": True},
        "tracks": {"concepts": {"layout": "padded"}},
        "loader": {"num_threads": 2, "prefetch_batches": 3},
    }
