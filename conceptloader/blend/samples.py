"""Which tokens a sample of a view reads, and whether it may read them."""

from collections.abc import Sequence

import numpy as np

from conceptloader.blend import View
from conceptloader.errors import ConfigError


def present(views: Sequence[View | None], member: int) -> View:
    """views[member]. Raises ConfigError if that member of the order has left the configuration."""
    view = views[member]
    if view is None:
        raise ConfigError(
            f"member {member} of the order is not in the configuration, but a sample before it left is asked for; "
            "put its dataset back"
        )
    return view


def by_document(view: View) -> bool:
    """Whether a sample is a document, not a window."""
    return view.member.seq_len is None


def token_range(view: View, number: int, seq_len: int) -> tuple[int, int]:
    """Tokens [start, stop) that sample `number` reads: seq_len + 1, or fewer of a shorter document."""
    if not by_document(view):
        start = view.start + number * seq_len
        return start, start + seq_len + 1
    start, stop = view.dataset.document_range(view.start + number)
    return start, min(stop, start + seq_len + 1)


def in_quarantined_shard(view: View, number: int) -> bool:
    """Whether sample `number` is a document of a shard that is quarantined as a whole, its document table included."""
    if not by_document(view) or not view.quarantine or view.dataset.runs is not None:
        return False
    manifest = view.dataset.manifest
    shard = int(np.searchsorted(np.cumsum(manifest.shards.documents), view.start + number, side="right"))
    start, stop = manifest.starts()[shard : shard + 2].tolist()
    return any(a <= start and stop <= b for a, b in view.quarantine)
