"""A Megatron corpus and a datatrove folder, adopted, blended with a native concept dataset in one configuration."""

from pathlib import Path

import numpy as np
import yaml

from conceptloader.batch.open import open_reader
from conceptloader.blend import load_config, open_blend
from tests.corpora import blended


def test_adopted_and_native_datasets_in_one_configuration(tmp_path: Path) -> None:
    """The same documents in all three."""
    config = blended.write(tmp_path, dict.fromkeys(blended.WEIGHTS, blended.random_documents(0))).config
    whole = {
        **yaml.safe_load(config.read_text()),
        "seq_len": 16,
        "outputs": {"position_ids": "document", "document_ids": True},
    }
    batches = []
    for engine in ("compiled", "reference"):
        blend = open_blend(load_config({**whole, "loader": {"engine": engine}}, base_dir=tmp_path))
        batches.append(open_reader(blend).read(np.arange(320, dtype=np.uint64)))
    compiled, reference = batches
    assert compiled.keys() == reference.keys()
    for name in reference:
        assert np.array_equal(compiled[name], reference[name]), name
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
