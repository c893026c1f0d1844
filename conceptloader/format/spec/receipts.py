"""What a dataset's SHA-256 tree is of: documents in a shard, shards in the dataset. docs/receipts.md has the bytes."""

import hashlib
from collections.abc import Iterator, Sequence
from itertools import pairwise
from typing import Any

import numpy as np
from numpy.typing import NDArray

from conceptloader.base import merkle
from conceptloader.errors import ConfigError
from conceptloader.format.spec.columns import Ints, as_field
from conceptloader.format.spec.manifest import Manifest


def entries_of(base: int, tokens: NDArray[Any], offsets: Ints, ids: Sequence[bytes]) -> Iterator[bytes]:
    """Documents in the tree of their shard: first token there, number of tokens, SHA-256 of the tokens, id.

    base: first token of those that are given, in the shard. Raises: ValueError for tokens that are no u4.
    """
    content = np.ascontiguousarray(as_field(tokens, np.dtype("<u4")))
    for (start, stop), name in zip(pairwise(offsets.tolist()), ids, strict=True):
        digest = hashlib.sha256(content[start:stop].data).digest()
        yield _numbers(base + start, stop - start) + digest + name


def shard_entries(manifest: Manifest) -> list[bytes]:
    """Shards in the tree of their dataset: first token, numbers of tokens and documents, root of the documents.

    Raises: ConfigError for a manifest without document hashes.
    """
    table = manifest.shards
    if None in table.document_root:
        raise ConfigError(
            "receipts",
            f"no hash of the documents of shard {table.document_root.index(None)}",
            "a dataset that was made with --receipts",
            "build or adopt it again with it: the tokens and their order stay the same",
        )
    columns = manifest.starts().tolist()[:-1], table.tokens.tolist(), table.documents.tolist(), table.document_root
    return [_numbers(*row) + bytes.fromhex(str(root)) for *row, root in zip(*columns, strict=True)]


def dataset_root(manifest: Manifest) -> bytes:
    """The root of a dataset. Raises: see shard_entries."""
    return merkle.root_of(map(merkle.leaf, shard_entries(manifest)))


def _numbers(*values: int) -> bytes:
    return b"".join(value.to_bytes(8, "little") for value in values)
