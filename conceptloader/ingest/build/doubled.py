"""Documents that have the eos or the bos already which a build is about to give them, as tokens or as text."""

from collections import Counter
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field

import numpy as np

from conceptloader.errors import InputError
from conceptloader.ingest.records.batch import Ragged

_FIRST = 1000  # documents that tell what all are like


@dataclass
class Doubled:
    """Counts them.

    asked: what raises if most of the first documents have it, since nobody wants two in all: "eos", "bos", or "text",
    which is the name of a special token at the beginning or the end.
    """

    asked: Collection[str] = ()
    _seen: int = 0
    _found: Counter[tuple[str, int]] = field(default_factory=Counter)
    _framed: Counter[str] = field(default_factory=Counter)

    @property
    def looks(self) -> bool:
        """Whether the texts of the next documents matter."""
        return "text" in self.asked and self._seen < _FIRST

    def count(self, tokens: Ragged, eos: int | None, bos: int | None, framed: Mapping[str, int]) -> int:
        """Documents of a batch, as they come, that end with this eos or begin with this bos.

        framed: how many begin or end with the name of a special token as text, by name.

        Raises: InputError, see `check`.
        """
        starts, ends = tokens.offsets[:-1], tokens.offsets[1:]
        some, given = ends > starts, (("eos", eos, ends - 1), ("bos", bos, starts))
        found = Counter(
            {
                (kind, token): int(np.count_nonzero(tokens.values[at[some]] == token))
                for kind, token, at in given
                if token is not None
            }
        )
        if self._seen < _FIRST:
            self._seen += len(tokens)
            self._found += found
            self._framed.update(framed)
            if self._seen >= _FIRST:
                self.check()
        return found.total()

    def check(self) -> None:
        """Of the first documents, which may be all. Raises: InputError if most of them have what is asked."""
        name = max(self._framed, key=lambda name: self._framed[name], default="")
        if "text" in self.asked and 2 * self._framed[name] > self._seen:
            raise InputError(
                _WHERE,
                f"{self._framed[name]:,} of the first {self._seen:,} documents, which begin or end with {name!r} as "
                "text",
                "documents without it, or a choice what it is",
                "pass --special-tokens control for the token itself, or --special-tokens text",
            )
        for (kind, token), count in self._found.items():
            if kind in self.asked and 2 * count > self._seen:
                what, fix = _KINDS[kind]
                found = f"{count:,} of the first {self._seen:,} documents, which {what} already, token {token}"
                raise InputError(_WHERE, found, "documents without it", fix)


_WHERE = "shard 00000"  # the only one that is asked
_KINDS = {
    "eos": ("end with the eos", "append none (--no-eos), or name it to have a second one (--eos)"),
    "bos": ("begin with the bos", "omit --bos"),
}
