"""Datasets to be damaged: every mode, encoding, codec and kind of file, and everything that can be read of them."""

from dataclasses import dataclass

import numpy as np

import conceptloader as cl
from conceptloader.ingest.adopt.adopt import adopt

EOS = 0
VOCAB = 300
SEQ_LEN = 9
_RECORDS = {
    "concepts": lambda k: [(k * 7 + j) % 40 for j in range(k % 4)],
    "numpy": lambda k: np.arange(k % 5, dtype=np.float32),
    "json": lambda k: {"k": k, "list": [1.5, None, "x" * (k % 40)], "text": "ü" * (k % 9)},
    "bytes": lambda k: bytes(range(k % 30)),
}


@dataclass(frozen=True)
class Variant:
    """One way to store a dataset."""

    mode: str
    encoding: str = "spans"
    codec: str = "concepts"

    def __str__(self):
        return f"{self.mode}-{self.encoding}-{self.codec}"

    def build(self, path):
        if self.mode == "adopted":
            _build_adopted(path)
            return
        parameters = {"dtype": "f4"} if self.codec == "numpy" else {}
        vocabulary = [f"concept {k}" for k in range(40)] if self.codec == "concepts" else None
        track = cl.writing.TrackOptions(
            codec=self.codec, encoding=self.encoding, parameters=parameters, vocabulary=vocabulary
        )
        options = cl.writing.BuildOptions(
            mode=self.mode,
            tokenizer=cl.writing.Tokenizer(name="test", vocab_size=VOCAB, eos_id=EOS),
            tracks={} if self.mode == "token-stream" else {"notes": track},
            fields={"loss_mask": "u1"},
            block_tokens=8,
        )
        build = cl.writing.create_writer(path, options, plan=[0, 1, 2])
        number = 0
        for shard in range(3):
            with build.shard(shard) as writer:
                for document in range(6):
                    size = (document * 5 + shard) % 17
                    spans = {}
                    if options.tracks:
                        borders = range(0, size - 3, 4)
                        record = _RECORDS[self.codec]
                        spans = {"notes": [(a, a + 3, record(number + a)) for a in borders]}
                    tokens = [(number * 31 + t * 7) % VOCAB for t in range(size)]
                    writer.add_document(tokens, spans, f"id-{number}", {"loss_mask": [t % 2 for t in range(size)]})
                    number += 1
        cl.writing.finalize(path)


def _build_adopted(path):
    for name in "ab":
        (np.arange(150) * 7 % 13).astype("<u2").tofile(path.parent / f"{path.name}-{name}.bin")
    adopt([path.parent / f"{path.name}-{name}.bin" for name in "ab"], path, dtype="u2", document_end=EOS)
    assert cl.verify(path, full=True) == []  # writes the checksums of the adopted files


VARIANTS = [
    *(Variant("stream-with-metadata", encoding, codec) for encoding in ("dense", "spans") for codec in _RECORDS),
    Variant("token-stream", "none", "none"),
    *(Variant("document", encoding, codec) for encoding in ("dense", "spans") for codec in ("concepts", "json")),
    Variant("adopted", "none", "none"),
]


def plain(value):
    """Anything that can be compared."""
    return value.tolist() if isinstance(value, np.ndarray) else value


def everything(path):
    """All that can be read of a dataset, in every way in which it can be read."""
    ds = cl.open_dataset(path, verify_files=False)  # as damage that no sample meets
    try:
        return _content(ds)
    finally:
        ds.close()


def _content(ds):
    tracks = sorted(ds.tracks)
    whole = ds.read(0, ds.num_tokens, tracks, documents=True)
    found = [ds.mode, ds.num_tokens, ds.num_documents, ds.tokenizer]
    found += [whole["tokens"].tolist(), whole["documents"].first.tolist(), whole["documents"].ids.tolist()]
    found += [whole[name].tolist() for name in ds.field_names]
    for track in tracks:
        spans = whole[track]
        found += [getattr(spans, name).tolist() for name in ("start", "end", "begins_before", "ends_after")]
        found += [[plain(value) for value in spans.decode()]]
        found += [ds.vocabulary(track), ds.tracks[track].spans_in(SEQ_LEN), ds.tracks[track].max_items]
    for document in range(ds.num_documents):
        external = ds.document_id(document)
        found += [ds.document_range(document), external]
        found += [ds.find_document(external)] if external else []
    samples = ds.documents() if ds.mode == "document" else ds.windows(SEQ_LEN)
    found += [[sample["tokens"].tolist() for sample in samples]]
    return found
