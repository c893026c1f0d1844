"""A dataset that is rebuilt under a reader: its manifest is looked at again whenever a shard is first opened."""

from collections.abc import Callable, Hashable

from conceptloader.format.spec.layout import bad
from conceptloader.format.spec.manifest import Manifest

_REBUILT = (
    "the dataset was rebuilt or replaced while it was in use: restore it, or build into another directory; restart"
)


class ManifestGuard:
    """Whether a manifest is still the one that was read.

    status: what changes when the file is written again, the modification time or an ETag; cheap. load: reads the
    manifest; called only when the status has changed, since the same dataset may be restored or copied into place.
    """

    def __init__(self, where: str, status: Callable[[], Hashable], load: Callable[[], Manifest]) -> None:
        self._where, self._status, self._load = where, status, load
        # Taken before the manifest is read: one that is replaced in between is noticed.
        self._known = status()
        self._looked: set[int] = set()

    def check(self, manifest: Manifest, shard: int) -> None:
        """Looks once for each shard. Raises: FormatError if the file says something else than `manifest`, or is
        damaged; ReadError."""
        if shard in self._looked:
            return
        status = self._status()
        if status != self._known:
            require_same(self._where, self._load(), manifest.identity)
            self._known = status
        self._looked.add(shard)


def require_same(where: str, found: Manifest, identity: str) -> None:
    """Raises: FormatError unless `found` says what the manifest of this identity said."""
    if found.identity != identity:
        raise bad(where, f"a manifest of other content ({found.identity})", f"{identity} as it was opened", _REBUILT)
