"""Random datasets with all that a batch can hold; batches by hand, of windows that are picked."""

from dataclasses import replace

import numpy as np

import conceptloader as cl
from conceptloader.config import ConceptOptions, Outputs
from conceptloader.loader.batch.open import decide_layout
from conceptloader.testing import random_documents, write_dataset
from tests.oracle.corpora import FIELDS, Types, write, write_columns
from tests.oracle.data import read as read_plainly


def configs(folder, seed):
    """Windows, documents and packs of two datasets each, with every array that they can have."""
    rng = np.random.default_rng(seed)
    types, block_tokens = Types.choose(rng), int(rng.choice([1, 3, 8]))
    for name in ("plain", "more", "documents"):
        write(folder / name, name, rng, block_tokens, types)
        write_columns(folder / name, types)
    cl.concat([folder / "more", folder / "plain"], folder / "joined")
    found = []
    for names, more in (
        (("plain", "joined"), {}),
        (("documents",), {}),
        (("joined", "documents"), {"packing": {"bins": 3}}),
    ):
        columns = sorted({column for name in names for column in read_plainly(folder / name).columns})
        outputs = {
            "document_ids": True, "cu_seqlens": True, "sample_seed": True, "position_ids": "document",
            "loss_weight": "weight", "mask_document_boundaries": True, "fields": dict.fromkeys(FIELDS, "inputs"),
            "columns": {column: {"at": "labels", "missing": 3} for column in columns},
        }  # fmt: skip
        tracks = {"concepts": {"layout": "padded"}, "scored": {"layout": "ragged"}, "numbers": {}}
        datasets = {name: {"path": str(folder / name), "weight": 1} for name in names}
        found.append({"seq_len": 5 + seed, "datasets": datasets, "outputs": outputs, "tracks": tracks, **more})
    return found


def make_view(path, seq_len, dataset_id=0, **config):
    """A dataset as a configuration of it alone reads it, with all its tracks."""
    [view] = cl.open_blend({"seq_len": seq_len, "datasets": {path.name: {"path": str(path)}}, **config}).views
    return replace(view, dataset_id=dataset_id, tracks=tuple(view.dataset.tracks))


def small_view(path, seq_len, shards=3, encoding="spans"):
    """All windows of a dataset with two tracks, and a layout of all that is in them."""
    documents = random_documents(20 * shards, seed=shards, mean_length=30, tracks={"concepts": 50, "topics": 9})
    write_dataset(path, documents, shards=shards, encoding=encoding)
    view = make_view(path, seq_len)
    tracks = {track: ConceptOptions(overflow="truncate", max_spans=seq_len) for track in view.tracks}
    outputs = Outputs(document_ids=True, cu_seqlens=True, position_ids="document")
    return view, decide_layout([view], seq_len, outputs, tracks)


def read(reader, *windows, first=0):
    """A batch of windows of the first view, as the samples behind `first`."""
    picked = np.array(windows, np.uint64)
    return reader.read(picked + np.uint64(first), picked=(np.zeros(len(windows), np.int64), picked))
