"""A small configuration over two datasets."""

import pytest

from conceptloader.testing import random_documents, write_dataset
from tests.corpora.small import written


@pytest.fixture(scope="session")
def data(tmp_path_factory):
    path = tmp_path_factory.mktemp("data")
    write_dataset(path / "a", random_documents(70, seed=1, mean_length=30), shards=2, encoding="spans")
    write_dataset(path / "b", random_documents(30, seed=2, mean_length=30), encoding="dense")
    pairs = [(range(1, 9), {}, str(k), {"loss_mask": [k % 2] * 8}) for k in range(20)]
    written(path / "pairs", pairs, mode="document", fields={"loss_mask": "u1"})
    return path


@pytest.fixture
def config(data):
    """Plain data for load_config; tests change their copy."""
    return {
        "seed": 5,
        "seq_len": 16,
        "datasets": {"a": {"path": str(data / "a"), "weight": 0.7}, "b": {"path": str(data / "b"), "weight": 0.3}},
        "phases": [{"at": 70, "weights": {"a": 0.2, "b": 0.8}}],
        "outputs": {"document_ids": True, "cu_seqlens": True},
        "tracks": {"concepts": {"layout": "padded"}},
        "loader": {"num_threads": 2, "prefetch_batches": 3},
    }
