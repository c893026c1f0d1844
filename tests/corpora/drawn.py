"""Random corpora, and what a reader must return for them, worked out token by token from the input alone."""

import struct
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path
from typing import Any

from hypothesis import strategies as st

import conceptloader as cl

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

    def tokens(self) -> list[int]:
        return [token for shard in self.shards for document in shard.documents for token in document.tokens]

    def write(
        self, path: Path, encoding: str, block_tokens: int = 4, token_type: str | None = None, **options: Any
    ) -> "cl.Dataset":
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


@dataclass
class Token:
    """What a brute-force reader knows of one token. spans: for each track (identity of its run, record) or None."""

    token: int
    shard: int
    document: int
    first: int
    spans: dict[str, Any]


def explain(corpus: Corpus) -> list[Token]:
    """The tokens of the dataset, one by one."""
    result: list[Token] = []
    number = 0
    for shard_number, shard in enumerate(corpus.shards):
        for document in shard.documents:
            first = len(result)
            for i, token in enumerate(document.tokens):
                spans: dict[str, Any] = {}
                for track in corpus.tracks:
                    spans[track] = None
                    for k, (start, end, record) in enumerate(document.spans.get(track, [])):
                        if start <= i < end:
                            shared = isinstance(record, int)
                            content = shard.shared[track][record] if shared else record
                            spans[track] = (("shared", record) if shared else (number, k), content)
                result.append(Token(token, shard_number, number, first, spans))
            number += 1
    return result


def expected_spans(tokens: list[Token], track: str, start: int, stop: int) -> list[tuple[Any, ...]]:
    """(start, end, begins_before, ends_after, concepts) of each run that touches [start, stop)."""

    def same_run(a: int, b: int) -> bool:
        """Whether tokens a and b = a + 1 are in one run."""
        if a < 0 or b >= len(tokens) or tokens[a].shard != tokens[b].shard:
            return False
        left, right = tokens[a].spans[track], tokens[b].spans[track]
        return left is not None and right is not None and left[0] == right[0]

    runs: list[list[Any]] = []
    for t in range(start, stop):
        if tokens[t].spans[track] is None:
            continue
        if t > start and same_run(t - 1, t):
            runs[-1][1] = t + 1 - start
        else:
            runs.append([t - start, t + 1 - start, t == start and same_run(t - 1, t), False, tokens[t].spans[track][1]])
        runs[-1][3] = t == stop - 1 and same_run(t, t + 1)
    return [tuple(run) for run in runs]


def expected_documents(tokens: list[Token], start: int, stop: int) -> list[tuple[int, int]]:
    """(first token, document number), without repetition."""
    return list(dict.fromkeys((tokens[t].first, tokens[t].document) for t in range(start, stop)))


def found_spans(spans: Any) -> list[tuple[Any, ...]]:
    """A reader's Spans in the form of `expected_spans`."""
    decoded = [tuple(record.tolist()) for record in spans.decode()]
    columns = (spans.start, spans.end, spans.begins_before, spans.ends_after)
    return list(zip(*(column.tolist() for column in columns), decoded, strict=True))


def concepts(ids: tuple[int, ...]) -> bytes:
    return struct.pack(f"<{len(ids)}I", *ids)


CONCEPTS = st.lists(st.integers(0, 2**32 - 1), max_size=3).map(tuple)


@st.composite
def documents(draw: Any, tracks: list[str], shared: dict[str, list[tuple[int, ...]]]) -> Document:
    tokens = draw(st.lists(st.integers(0, VOCAB - 1), max_size=12))
    spans = {}
    for track in tracks:
        cuts = sorted(draw(st.sets(st.integers(0, len(tokens)), max_size=6)))
        records = st.integers(0, len(shared[track]) - 1) | CONCEPTS if shared[track] else CONCEPTS
        spans[track] = [(a, b, draw(records)) for a, b in pairwise(cuts) if draw(st.booleans())]
    return Document(tokens, spans)


@st.composite
def corpora(draw: Any, max_shards: int = 4, tracks: tuple[str, ...] = ("concepts", "source")) -> Corpus:
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
