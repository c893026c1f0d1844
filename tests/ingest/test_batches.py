"""Writing documents in batches gives the files that writing them one by one gives."""

import tempfile
from pathlib import Path
from typing import Any

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from conceptloader.format.spec.columns import offsets_of
from conceptloader.format.spec.options import BuildOptions, TrackOptions
from conceptloader.format.write.build import create_writer
from conceptloader.format.write.track import BulkSpans
from tests.corpora.records import content

OPTIONS = BuildOptions(
    fields={"mask": "u1"},
    tracks={"concepts": TrackOptions(vocabulary=list("abcd")), "note": TrackOptions(codec="bytes")},
    block_tokens=4,
)


@st.composite
def document(draw: st.DrawFn) -> dict[str, Any]:
    length = draw(st.integers(0, 9))
    spans = {}
    for track, record in (("concepts", st.lists(st.integers(0, 3), max_size=2)), ("note", st.binary(max_size=3))):
        borders = sorted(draw(st.lists(st.integers(0, length), max_size=6)))
        pairs = [(a, b) for a, b in zip(borders[::2], borders[1::2], strict=False) if a < b]
        spans[track] = [(a, b, draw(record)) for a, b in pairs]
    return {"tokens": list(range(length)), "spans": spans, "id": draw(st.sampled_from(["", "x", "ü"]))}


def bulk(documents: list[dict[str, Any]], track: str) -> BulkSpans:
    base = offsets_of([len(one["tokens"]) for one in documents])
    spans = [(base[i] + a, base[i] + b, r) for i, one in enumerate(documents) for a, b, r in one["spans"][track]]
    records = [r if isinstance(r, bytes) else np.array(r, "<u4").tobytes() for _, _, r in spans]
    return BulkSpans(
        start=np.array([a for a, _, _ in spans], np.int64),
        end=np.array([b for _, b, _ in spans], np.int64),
        record=np.arange(len(spans)),
        data=b"".join(records),
        offsets=offsets_of([len(record) for record in records]),
    )


@settings(max_examples=50)
@given(st.lists(document(), max_size=8), st.integers(0, 8))
def test_equal(documents: list[dict[str, Any]], cut: int) -> None:
    with tempfile.TemporaryDirectory() as name:
        singly, batched = (create_writer(Path(name) / kind, OPTIONS) for kind in "ab")
        with singly.shard(0) as writer:
            for one in documents:
                writer.add_document(**one, fields={"mask": [1] * len(one["tokens"])})
        with batched.shard(0) as writer:
            for part in (documents[:cut], documents[cut:]):
                tokens = np.array([token for one in part for token in one["tokens"]], np.int64)
                writer.add_documents(
                    tokens,
                    offsets_of([len(one["tokens"]) for one in part]),
                    {track: bulk(part, track) for track in OPTIONS.tracks},
                    [one["id"] for one in part],
                    {"mask": np.ones(len(tokens), np.uint8)},
                )
        assert content(Path(singly.path)) == content(Path(batched.path))
