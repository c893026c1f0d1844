"""A Megatron corpus and a datatrove folder, adopted, blended with a native concept dataset in one configuration."""

from pathlib import Path

import numpy as np
import pytest
import yaml

import conceptloader as cl
from conceptloader.batch.open import open_reader
from conceptloader.blend import load_config, open_blend
from conceptloader.ingest.adopt.adopt import adopt
from conceptloader.subset.views import SubsetOptions, make_subsets
from tests.corpora import blended
from tests.corpora.token_files import write_megatron


def test_adopted_and_native_datasets_in_one_configuration(tmp_path: Path) -> None:
    """The same documents in all three."""
    config = blended.write(tmp_path, dict.fromkeys(blended.WEIGHTS, blended.random_documents(0))).config
    whole = {
        **yaml.safe_load(config.read_text()),
        "seq_len": 16,
        "outputs": {"position_ids": "document", "document_ids": True},
    }
    blend, samples = open_blend(load_config(whole, base_dir=tmp_path)), np.arange(320, dtype=np.uint64)
    reference = open_reader(blend).read(samples)
    # Documents of all three are known, and the same tokens give the same documents, foreign or not.
    ids, members = reference["document_ids"], reference["dataset_id"]
    assert (ids >= 0).all()
    counts = np.bincount(members, minlength=3)
    assert np.abs(counts - np.array([*blended.WEIGHTS.values()]) * 320).max() <= 2
    by_tokens: dict[bytes, set[bytes]] = {}
    for tokens, documents in zip(reference["input_ids"], ids, strict=True):
        by_tokens.setdefault(tokens.tobytes(), set()).add(documents.tobytes())
    assert all(len(found) == 1 for found in by_tokens.values())
    assert np.array_equal(reference["concepts_num_spans"] > 0, members == [*blended.WEIGHTS].index("native"))


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
