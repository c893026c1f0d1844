"""The two files of a view: a manifest that names its source, and the runs of the source's tokens that it is made of."""

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import Annotated, Any

import numpy as np
import xxhash

from conceptloader.base.hashing import fingerprint
from conceptloader.base.strict import within
from conceptloader.format.spec import layout as fmt
from conceptloader.format.spec.columns import Ints, offsets_of
from conceptloader.format.spec.jsonfile import Checksum, dump_json
from conceptloader.format.spec.layout import DAMAGED, bad
from conceptloader.format.spec.manifest import Ladder

FORMAT = "conceptview"
VERSION = 1
RUNS = "runs.bin"
RUN = np.dtype([("source", "<u8"), ("tokens", "<u8")])
"""Tokens [source, source + tokens) of the source."""


@dataclass(frozen=True)
class Runs:
    """source: int64 [n], where each run begins in the source, ascending.

    First: int64 [n + 1], where it does in the view, and the number of tokens. No run is empty, and none overlaps
    another.
    """

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
class Source:
    """The dataset that a view refers to. path: relative to the view's."""

    path: str
    stream_fingerprint: str
    tracks_fingerprint: str


@dataclass(frozen=True, kw_only=True)
class ViewManifest:
    """manifest.json of a view.

    runs: XXH3-64 of their file, each a document. max_spans: by track, as in the manifest of a dataset. extra: free.
    """

    created_by: str
    source: Source
    num_tokens: Annotated[int, within(1, fmt.MAX_SIZE)]
    num_documents: Annotated[int, within(1, 1 << 48)]
    runs: Checksum
    max_spans: Mapping[str, Ladder]
    extra: Mapping[str, Any] = field(default_factory=dict)

    def dump(self) -> bytes:
        return dump_json({"format": FORMAT, "version": VERSION, **asdict(self)})

    @property
    def identity(self) -> str:
        """Of the tokens, in their order."""
        return fingerprint([FORMAT, VERSION, self.source.stream_fingerprint, self.runs])

    def load_runs(self, data: bytes, where: str, source_tokens: int) -> Runs:
        """What `Runs.dump` wrote. Raises: FormatError unless these are the runs that the manifest means."""
        if len(data) != self.num_documents * RUN.itemsize or xxhash.xxh3_64_hexdigest(data) != self.runs:
            rule = f"{self.num_documents * RUN.itemsize} bytes of checksum {self.runs}"
            raise bad(where, f"{len(data)} bytes of another checksum", rule, DAMAGED)
        table = np.frombuffer(data, RUN)
        sane = (table["source"] < fmt.MAX_SIZE) & (table["tokens"] < fmt.MAX_SIZE) & (table["tokens"] > 0)
        source, tokens = table["source"].astype(np.int64), table["tokens"].astype(np.int64)
        apart = (source + tokens)[:-1] <= source[1:]
        runs = Runs(source, offsets_of(tokens))
        if not sane.all() or not apart.all() or runs.end[-1] > source_tokens or runs.first[-1] != self.num_tokens:
            rule = f"runs that rise, of {self.num_tokens} tokens together, below {source_tokens}"
            raise bad(where, "runs that are none", rule, DAMAGED)
        return runs
