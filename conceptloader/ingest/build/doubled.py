"""Documents that have the eos or the bos already which a build is about to give them."""

from dataclasses import dataclass

import numpy as np

from conceptloader.errors import InputError
from conceptloader.ingest.records.batch import Ragged

_FIRST = 1000  # documents that tell what all are like


@dataclass
class Doubled:
    """Counts them. asked: whether to raise if most of the first documents have one, since nobody wants two in all."""

    asked: bool = False
    _seen: int = 0
    _found: int = 0

    def count(self, tokens: Ragged, eos: int | None, bos: int | None, where: str) -> int:
        """Documents of a batch, as they come, that end with this eos or begin with this bos.

        Raises: InputError.
        """
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
