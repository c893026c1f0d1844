"""A Megatron corpus and a datatrove folder, adopted, blended with a native concept dataset in one configuration."""

from pathlib import Path

import numpy as np

import conceptloader as cl
from conceptloader.batch.open import open_reader
from conceptloader.config import load_config, open_blend
from conceptloader.ingest.adopt import adopt
from tests.adopt.test_datatrove import write as write_datatrove
from tests.adopt.test_megatron import write as write_megatron

CONFIG = """
version: 1
seq_len: 16
roots: [.]
datasets:
  megatron: {path: adopted/megatron, weight: 0.4}
  datatrove: {path: adopted/datatrove, weight: 0.3}
  native: {path: native, weight: 0.3}
outputs: {position_ids: document, document_ids: true}
concepts: {c: {layout: padded}}
loader: {engine: %s}
"""


def corpora(folder: Path) -> None:
    rng = np.random.default_rng(0)
    documents = [rng.integers(1, 90, rng.integers(1, 40)).tolist() for _ in range(60)]
    (folder / "raw").mkdir()
    adopt([write_megatron(folder / "raw" / "m", [[tokens] for tokens in documents])], folder / "adopted" / "megatron")
    adopt([write_datatrove(folder / "raw", "d.ds", documents, size=4)], folder / "adopted" / "datatrove")
    build = cl.create_build(folder / "native", cl.BuildOptions(tracks={"c": cl.TrackOptions()}))
    with build.shard(0) as writer:
        for number, tokens in enumerate(documents):
            writer.add_document(tokens, spans={"c": [(0, len(tokens), [number])]})
    cl.finalize(folder / "native")


def test_adopted_and_native_datasets_in_one_configuration(tmp_path: Path) -> None:
    corpora(tmp_path)
    batches = []
    for engine in ("compiled", "reference"):
        (tmp_path / "blend.yaml").write_text(CONFIG % engine)
        blend = open_blend(load_config(tmp_path / "blend.yaml"))
        batches.append(open_reader(blend).read(np.arange(320, dtype=np.uint64)))
    compiled, reference = batches
    assert compiled.keys() == reference.keys()
    for name in reference:
        assert np.array_equal(compiled[name], reference[name]), name
    # Documents of all three are known, and the same tokens give the same documents, foreign or not.
    ids, members = reference["document_ids"], reference["dataset_id"]
    assert (ids >= 0).all()
    counts = np.bincount(members, minlength=3)
    assert np.abs(counts - np.array([0.3, 0.4, 0.3]) * 320).max() <= 2  # by name: datatrove, megatron, native
    by_tokens: dict[bytes, set[bytes]] = {}
    for tokens, documents in zip(reference["input_ids"], ids, strict=True):
        by_tokens.setdefault(tokens.tobytes(), set()).add(documents.tobytes())
    assert all(len(found) == 1 for found in by_tokens.values())
    native = reference["c_num_spans"] > 0
    assert 0 < native.sum() < 320
