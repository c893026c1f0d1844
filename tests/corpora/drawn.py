"""Random corpora, and the spans that a dataset of them has to have."""

import struct
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Any

from hypothesis import strategies as st

import conceptloader as cl
from tests.oracle.data import Span as DataSpan

VOCAB = 300
Span = tuple[int, int, Any]  # start, end, record: concept ids (a tuple), or the number (int) of a shared record


@dataclass
class Document:
    tokens: list[int]
    spans: dict[str, list[Span]]
    id: str = ""


@dataclass
class Shard:
    shared: dict[str, list[tuple[int, ...]]]
    documents: list[Document] = field(default_factory=list)


@dataclass
class Corpus:
    tracks: list[str]
    shards: list[Shard]

    def tokens(self):
        return [token for shard in self.shards for document in shard.documents for token in document.tokens]

    def write(self, path, encoding, block_tokens=4, token_type=None, **options):
        build = cl.writing.create_writer(
            path,
            cl.writing.BuildOptions(
                tokenizer=cl.writing.Tokenizer(name="test", vocab_size=VOCAB),
                token_type=token_type,
                tracks={track: cl.writing.TrackOptions(encoding=encoding) for track in self.tracks},
                fields={"weight": "f4"},
                block_tokens=block_tokens,
                **options,
            ),
            plan=list(range(len(self.shards))),
        )
        for number, shard in enumerate(self.shards):
            with build.shard(number) as writer:
                for track, records in shard.shared.items():
                    for record in records:
                        writer.add_record(track, concepts(record))
                for document in shard.documents:
                    spans = {
                        track: [(a, b, r if isinstance(r, int) else concepts(r)) for a, b, r in found]
                        for track, found in document.spans.items()
                    }
                    weight = [token / 2 for token in document.tokens]
                    writer.add_document(document.tokens, spans, document.id, {"weight": weight})
        cl.writing.finalize(path)
        return cl.open_dataset(path)


def runs(corpus, track):
    """The spans of a track in tokens of the dataset: adjacent ones of one shared record of a shard are one."""
    found = []
    start, last = 0, None
    for shard in corpus.shards:
        for document in shard.documents:
            for a, b, record in document.spans.get(track, []):
                content = concepts(shard.shared[track][record] if isinstance(record, int) else record)
                key = (id(shard), record) if isinstance(record, int) else object()
                if found and key == last and found[-1].end == start + a:
                    found[-1] = DataSpan(found[-1].start, start + b, content)
                else:
                    found.append(DataSpan(start + a, start + b, content))
                last = key
            start += len(document.tokens)
    return found


def concepts(ids):
    return struct.pack(f"<{len(ids)}I", *ids)


CONCEPTS = st.lists(st.integers(0, 2**32 - 1), max_size=3).map(tuple)


@st.composite
def documents(draw, tracks, shared):
    tokens = draw(st.lists(st.integers(0, VOCAB - 1), max_size=12))
    spans = {}
    for track in tracks:
        cuts = sorted(draw(st.sets(st.integers(0, len(tokens)), max_size=6)))
        records = st.integers(0, len(shared[track]) - 1) | CONCEPTS if shared[track] else CONCEPTS
        spans[track] = [(a, b, draw(records)) for a, b in pairwise(cuts) if draw(st.booleans())]
    return Document(tokens, spans)


@st.composite
def corpora(draw, max_shards=4, tracks=("concepts", "source")):
    """Any shard layout with at least two tokens: empty shards and documents, gaps, records shared by far tokens."""
    names = list(tracks)
    shards = []
    for _ in range(draw(st.integers(1, max_shards))):
        shared = {track: draw(st.lists(CONCEPTS, max_size=2)) for track in names}
        shards.append(Shard(shared, draw(st.lists(documents(names, shared), max_size=5))))
    corpus = Corpus(names, shards)
    if len(corpus.tokens()) < 2:
        shards[-1].documents.append(Document([1, 2], {}))
    return corpus
