"""What the reader returns: documents and spans of a token range."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from conceptloader.base.lazy import lazy
from conceptloader.errors import ConfigError, FormatError
from conceptloader.format.spec.codecs import Codec, ConceptsCodec
from conceptloader.format.spec.columns import Ints, offsets_of
from conceptloader.format.spec.layout import DAMAGED

Sample = dict[str, Any]


@dataclass(frozen=True, eq=False)
class Documents:
    """The documents that hold the tokens of a range, in order.

    first: int64 [k], first token of each in the dataset (may lie before the range); ids: int64 [k], their numbers in
    the dataset, -1 for tokens of a shard without a document table. Empty documents hold no token and are omitted.
    """

    first: Ints
    ids: Ints

    def __len__(self) -> int:
        return len(self.ids)


def decode_all(codec: Codec, records: Sequence[memoryview], where: str) -> list[Any]:
    """What the codec makes of each record. Raises: FormatError that begins with `where`."""
    try:
        return [codec.decode(record) for record in records]
    except (ValueError, RecursionError) as error:
        fix = "pass register_codec a codec that reads these records, or restore the file from a copy"
        found = f"a record that its codec cannot decode ({error})"
        raise FormatError(where, found, "a record of its codec", fix) from error


@dataclass(frozen=True, eq=False)
class Spans:
    """The maximal runs of one record that touch a token range, in order; gaps are omitted.

    start, end: int64 [k], tokens [start, end) relative to the range and clipped to it; begins_before, ends_after: bool
    [k], whether clipping shortened the run (a run ends at a shard boundary); records: k memoryviews;
    where: how messages name them.
    """

    start: Ints
    end: Ints
    begins_before: NDArray[np.bool_]
    ends_after: NDArray[np.bool_]
    records: Sequence[memoryview]
    codec: Codec
    where: str = "spans"

    def __len__(self) -> int:
        return len(self.records)

    def decode(self) -> list[Any]:
        """One object per run, as the track's codec makes it."""
        return decode_all(self.codec, self.records, self.where)

    @lazy
    def values(self) -> NDArray[np.uint32]:
        """Concept ids of all runs end to end, uint32 [offsets[-1]]. Only for codec concepts."""
        if not isinstance(self.codec, ConceptsCodec):
            found = type(self.codec).__name__
            raise ConfigError("values", f"a track of {found}", "codec concepts", "use Values.decode()")
        item = self.codec.item
        odd = [len(record) for record in self.records if len(record) % item]
        if odd:
            raise FormatError(self.where, f"a record of {odd[0]} bytes", f"a multiple of {item}", DAMAGED)
        values = np.concatenate([np.zeros(0, np.uint32), *map(self.codec.ids_of, self.records)])
        try:
            self.codec.check_ids(values)
        except ValueError as error:
            raise FormatError.saying(self.where, f"{error}; {DAMAGED}") from error
        return values

    @lazy
    def scores(self) -> NDArray[np.float32]:
        """float32 [offsets[-1]], of `values`. Raises: ConfigError for a track without scores."""
        if not isinstance(self.codec, ConceptsCodec) or self.codec.scores is None:
            raise ConfigError(
                f"{self.where}: scores",
                "a track without scores",
                "a track with scores",
                "build it with --scores, or omit scores",
            )
        return np.concatenate([np.zeros(0, np.float32), *map(self.codec.scores_of, self.records)])

    @lazy
    def offsets(self) -> Ints:
        """int64 [k + 1]: run i has the concepts values[offsets[i]:offsets[i + 1]]."""
        item = self.codec.item if isinstance(self.codec, ConceptsCodec) else 4
        return offsets_of([len(record) // item for record in self.records])
