"""Keys and fingerprints: the only two places where hashing decides behaviour.

Both are BLAKE2b (RFC 7693) over unambiguous encodings, so that they can be computed in any language.
"""

import hashlib
import json
from operator import index
from typing import Any

from conceptloader.errors import ConfigError

_ENCODER = json.JSONEncoder(sort_keys=True, separators=(",", ":"), allow_nan=False)


def derive_key(seed: int, *parts: str | int) -> int:
    """A 64-bit key from `seed` and a path of names, never from arithmetic on the seed.

    Each part enters with its type and its length, so that ("a", "bc") and ("ab", "c"), or 1 and "1", give unrelated
    keys. Integers may have any size and sign; those of numpy count as the same integers.

    Args:
        seed: Any integer.
        parts: Names and numbers, of a path from what is general to what is special.

    Returns:
        int in [0, 2**64).

    Raises:
        ConfigError: A part is neither a string nor an integer.
    """
    digest = hashlib.blake2b(digest_size=8, person=b"conceptloader")
    for part in (seed, *parts):
        if isinstance(part, bool) or not (isinstance(part, str) or hasattr(part, "__index__")):
            raise ConfigError(
                "derive_key",
                f"the part {part!r}",
                "integers and strings only",
                "pass str(...) or int(...) of it to derive_key",
            )
        kind, text = (b"s", part) if isinstance(part, str) else (b"i", str(index(part)))
        data = text.encode("utf-8")
        digest.update(kind + len(data).to_bytes(8, "little") + data)
    return int.from_bytes(digest.digest(), "little")


def canonical_json(value: Any) -> str:
    """JSON with sorted keys, no whitespace, ASCII only and no NaN: equal values give equal text."""
    return _ENCODER.encode(value)


def fingerprint(value: Any) -> str:
    """32 hexadecimal digits (BLAKE2b-128) of the canonical JSON of `value`."""
    return hashlib.blake2b(canonical_json(value).encode("ascii"), digest_size=16).hexdigest()
