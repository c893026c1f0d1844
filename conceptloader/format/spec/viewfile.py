"""The two files of a view: a manifest that names its source, and the runs of the source's tokens that it is made of."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import xxhash

from conceptloader.base.hashing import fingerprint
from conceptloader.base.version import __version__
from conceptloader.format.spec import layout as fmt
from conceptloader.format.spec.columns import Ints, offsets_of
from conceptloader.format.spec.jsonfile import JsonObject, dump_json, expect_format
from conceptloader.format.spec.layout import DAMAGED, bad
from conceptloader.format.spec.manifest import parse_ladder

FORMAT = "conceptview"
VERSION = 1
RUNS = "runs.bin"
RUN = np.dtype([("source", "<u8"), ("tokens", "<u8")])
"""Tokens [source, source + tokens) of the source."""


@dataclass(frozen=True)
class Runs:
    """source: int64 [n], where each run begins in the source, rising; first: int64 [n + 1], where it does in the view,
    and the number of tokens. No run is empty, and none overlaps another."""

    source: Ints
    first: Ints

    @classmethod
    def of(cls, start: Ints, stop: Ints) -> "Runs":
        """Those of token ranges of the source."""
        return cls(start, offsets_of(stop - start))

    def __len__(self) -> int:
        return len(self.source)

    @property
    def end(self) -> Ints:
        """Where each ends in the source."""
        return self.source + np.diff(self.first)

    def dump(self) -> bytes:
        table = np.empty(len(self), RUN)
        table["source"], table["tokens"] = self.source, np.diff(self.first)
        return table.tobytes()

    def meeting(self, start: Ints, end: Ints) -> tuple[Ints, Ints]:
        """(range, run) for each run that holds some of a token range of the source, in order of the ranges."""
        low = np.searchsorted(self.end, start, side="right")
        counts = np.maximum(np.searchsorted(self.source, end) - low, 0)
        which = np.repeat(np.arange(len(start)), counts)
        run: Ints = low[which] + np.arange(len(which)) - offsets_of(counts)[which]
        return which, run


@dataclass(frozen=True, kw_only=True)
class ViewManifest:
    """source: path of the dataset that it refers to, relative to the view's, with its fingerprints. documents: each of
    them a run. runs: XXH3-64 of their file. max_spans: by track, as in the manifest of a dataset. extra: free."""

    source: str
    stream_fingerprint: str
    tracks_fingerprint: str
    tokens: int
    documents: int
    runs: str
    max_spans: Mapping[str, Sequence[int]]
    extra: Mapping[str, Any] = field(default_factory=dict)

    def dump(self) -> bytes:
        head = {"format": FORMAT, "version": VERSION, "created_by": f"conceptloader {__version__}"}
        return dump_json({
            **head,
            "source": {
                "path": self.source,
                "stream_fingerprint": self.stream_fingerprint,
                "tracks_fingerprint": self.tracks_fingerprint,
            },
            "num_tokens": self.tokens,
            "num_documents": self.documents,
            "runs": self.runs,
            "max_spans": {name: list(counts) for name, counts in self.max_spans.items()},
            "extra": dict(self.extra),
        })  # fmt: skip

    @property
    def identity(self) -> str:
        """Of the tokens, in their order."""
        return fingerprint([FORMAT, VERSION, self.stream_fingerprint, self.runs])

    def load_runs(self, data: bytes, where: str, source_tokens: int) -> Runs:
        """What `Runs.dump` wrote. Raises: FormatError unless these are the runs that the manifest means."""
        if len(data) != self.documents * RUN.itemsize or xxhash.xxh3_64_hexdigest(data) != self.runs:
            rule = f"{self.documents * RUN.itemsize} bytes of checksum {self.runs}"
            raise bad(where, f"{len(data)} bytes of another checksum", rule, DAMAGED)
        table = np.frombuffer(data, RUN)
        sane = (table["source"] < fmt.MAX_SIZE) & (table["tokens"] < fmt.MAX_SIZE) & (table["tokens"] > 0)
        source, tokens = table["source"].astype(np.int64), table["tokens"].astype(np.int64)
        apart = (source + tokens)[:-1] <= source[1:]
        runs = Runs(source, offsets_of(tokens))
        if not sane.all() or not apart.all() or runs.end[-1] > source_tokens or runs.first[-1] != self.tokens:
            rule = f"runs that rise, of {self.tokens} tokens together, below {source_tokens}"
            raise bad(where, "runs that are none", rule, DAMAGED)
        return runs


def parse_view(head: JsonObject) -> ViewManifest:
    """Raises: FormatError."""
    expect_format(head, FORMAT, VERSION)
    source, ladders = head.object("source"), head.object("max_spans")
    head.take("created_by", str)
    view = ViewManifest(
        source=source.take("path", str),
        stream_fingerprint=source.take("stream_fingerprint", str),
        tracks_fingerprint=source.take("tracks_fingerprint", str),
        tokens=head.natural("num_tokens", fmt.MAX_SIZE, least=1),
        documents=head.natural("num_documents", 1 << 48, least=1),
        runs=head.checksum("runs"),
        max_spans={name: parse_ladder(ladders, name) for name in ladders.value},
        extra=head.take("extra", dict, {}),
    )
    for part in (source, ladders, head):
        part.done()
    return view
