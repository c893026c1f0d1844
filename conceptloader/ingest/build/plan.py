"""The shard plan: which part of which input goes into which shard. A function of the inputs and of one size alone."""

from collections.abc import Sequence
from typing import NamedTuple

from conceptloader.errors import ConfigError
from conceptloader.format.spec import layout as fmt
from conceptloader.ingest.records.inputs import Source

_LEAST, _MOST, _SHARDS = 64 << 20, 16 << 30, 64
_SMALL, _FEW = 1 << 20, 1000  # shards below this size may not be more than so many


class Piece(NamedTuple):
    """A part of input file `source`.

    It is bytes [begin, end) of lines, row groups [begin, end) of a parquet file, or, as [0, 0), a whole compressed
    file. A line belongs to the piece that holds its first byte.
    """

    source: int
    begin: int
    end: int


Plan = Sequence[Sequence[Piece]]  # the pieces of each shard, as they stand in build.json


def default_shard_bytes(sources: Sequence[Source]) -> int:
    """Input bytes of a shard: about 64 shards, but none smaller than 64 MiB or larger than 16 GiB."""
    return min(_MOST, max(_LEAST, -(-sum(source.size for source in sources) // _SHARDS)))


def plan_shards(sources: Sequence[Source], shard_bytes: int) -> list[list[Piece]]:
    """Cut the inputs, laid end to end, at the multiples of `shard_bytes`.

    A unit that cannot be cut (a row group, a compressed file) belongs to the shard in which it begins. Shards in
    which nothing begins are skipped. Files of size 0 appear nowhere.

    Raises: ConfigError if `shard_bytes` is not positive, or makes a host of shards.
    """
    if shard_bytes < 1:
        raise ConfigError("shard_input_bytes", str(shard_bytes), "at least 1", "raise --shard-input-bytes, or omit it")
    total = sum(source.size for source in sources)
    if total // shard_bytes >= (_FEW if shard_bytes < _SMALL else fmt.MAX_SHARDS):
        raise ConfigError(
            "shard_input_bytes",
            f"{shard_bytes:,}, which makes {total // shard_bytes + 1:,} shards of {total:,} bytes "
            "of input, each of several files",
            f"at least {_SMALL:,}",
            f"raise --shard-input-bytes, or omit it for about {_SHARDS} shards",
        )
    shards: dict[int, list[Piece]] = {}
    base = 0
    for number, source in enumerate(sources):
        if not source.size:
            continue
        if source.row_groups is not None:
            offset, owners = base, []
            for size in source.row_groups:
                owners.append(offset // shard_bytes)
                offset += size
            for shard in sorted(set(owners)):
                begin = owners.index(shard)
                shards.setdefault(shard, []).append(Piece(number, begin, begin + owners.count(shard)))
        elif source.whole:
            shards.setdefault(base // shard_bytes, []).append(Piece(number, 0, 0))
        else:
            for shard in range(base // shard_bytes, (base + source.size - 1) // shard_bytes + 1):
                begin = max(shard * shard_bytes - base, 0)
                end = min((shard + 1) * shard_bytes - base, source.size)
                shards.setdefault(shard, []).append(Piece(number, begin, end))
        base += source.size
    return [shards[shard] for shard in sorted(shards)]


def piece_bytes(source: Source, piece: Piece) -> int:
    """Stored bytes of a piece, for progress."""
    if source.row_groups is not None:
        return sum(source.row_groups[piece.begin : piece.end])
    return piece.end - piece.begin or source.size
