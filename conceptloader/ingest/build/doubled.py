"""Documents that have the eos or the bos already which a build is about to give them, as tokens or as text."""

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from conceptloader.errors import InputError
from conceptloader.ingest.records.batch import Ragged

_FIRST = 1000  # documents that tell what all are like


@dataclass
class Doubled:
    """Counts them.

    asked: whether to raise if most of the first documents have one, since nobody wants two in all. asked_text: whether
    to raise if most begin or end with the name of a special token, which is text by default.
    """

    asked: bool = False
    asked_text: bool = False
    _seen: int = 0
    _found: int = 0

    @property
    def looks(self) -> bool:
        """Whether the texts of the next documents matter."""
        return self.asked_text and self._seen < _FIRST

    def count(self, tokens: Ragged, eos: int | None, bos: int | None, where: str, framed: Mapping[str, int]) -> int:
        """Documents of a batch, as they come, that end with this eos or begin with this bos.

        framed: how many begin or end with the name of a special token as text, by name.

        Raises: InputError.
        """
        name = max(framed, key=lambda name: framed[name], default="")
        if self.looks and 2 * framed.get(name, 0) > len(tokens):
            raise InputError(
                f"shard {where}",
                f"{framed[name]:,} of the first {len(tokens):,} documents, which begin or end with {name!r} as text",
                "documents without it, or a choice what it is",
                "choose --special-tokens control for the token itself, or --special-tokens text",
            )
        total = 0
        starts, ends = tokens.offsets[:-1], tokens.offsets[1:]
        for what, given, at in (("end with the eos", eos, ends - 1), ("begin with the bos", bos, starts)):
            if given is None:
                continue
            found = int(np.count_nonzero(tokens.values[at[ends > starts]] == given))
            total += found
            if self.asked and self._seen < _FIRST and 2 * found > len(starts):
                fix = "append none (--no-eos), or name it to have a second one (--eos)"
                raise InputError(
                    f"shard {where}",
                    f"{found:,} of the first {len(starts):,} documents, which {what} already, token {given}",
                    "documents without it",
                    fix if what.startswith("end") else "omit --bos",
                )
        self._seen += len(starts)
        return total
