"""A Megatron corpus and a datatrove folder, adopted, blended with a native concept dataset in one configuration."""

from pathlib import Path

import numpy as np
import pytest

import conceptloader as cl
from conceptloader.ingest.adopt.adopt import adopt
from conceptloader.loader.batch.open import open_reader
from conceptloader.trace.subset import SubsetOptions, make_subsets
from tests.corpora.token_files import write_megatron


@pytest.mark.parametrize("packing", [None, {"bins": 3}], ids=["windows", "packs"])
def test_a_view_of_adopted_and_joined_data(tmp_path: Path, packing: dict[str, int] | None) -> None:
    """It reads the foreign files, as those of the same documents alone are read."""
    rng = np.random.default_rng(1)
    documents = [rng.integers(0, 100, size).tolist() for size in rng.integers(1, 60, 90)]
    for k in range(2):
        adopt([write_megatron(tmp_path / f"c{k}", [[some] for some in documents[k::2]])], tmp_path / f"d{k}")
    cl.concat([tmp_path / "d0", tmp_path / "d1"], tmp_path / "all")
    make_subsets(tmp_path / "all", tmp_path / "view", SubsetOptions(where="tokens > 20 and document % 3 > 0"))
    chosen = [some for k, some in enumerate(documents[0::2] + documents[1::2]) if len(some) > 20 and k % 3]
    adopt([write_megatron(tmp_path / "chosen", [[some] for some in chosen])], tmp_path / "copy")
    samples, batches = np.arange(100, dtype=np.uint64), []
    for name in ("copy", "view"):
        config = {
            "seq_len": 16,
            "packing": packing,
            "datasets": {"a": {"path": str(tmp_path / name)}},
            "outputs": {"position_ids": "document", "document_ids": True},
        }
        batches.append(open_reader(cl.open_blend(config)).read(samples))
    for key, values in batches[0].items():
        assert np.array_equal(batches[1][key], values), key
