"""The columns of a dataset: found when they are asked for, since no manifest names them."""

import errno
import os
from collections.abc import Iterator

from conceptloader.base.strict import unknown
from conceptloader.errors import ReadError
from conceptloader.format.spec import layout as fmt
from conceptloader.format.spec.columnfile import FILE, ColumnFile, column_file, parse_column
from conceptloader.format.spec.manifest import Manifest
from conceptloader.format.spec.paths import Roots, UrlRoots
from conceptloader.format.spec.shardtable import FileColumn


class Columns:
    """By name; a subset has those of its source.

    Each is read when it is first asked for, and stays what it was then. Iteration gives the names in a local directory;
    a store is asked for a column by its name alone.

    Args:
        manifest: Of the dataset.
        roots: Of its files.
        kinds: Its kinds of files, which those of each column that is asked for are added to.
    """

    def __init__(self, manifest: Manifest, roots: Roots, kinds: dict[str, FileColumn]) -> None:
        self._manifest, self._roots, self._kinds = manifest, roots, kinds
        self._known = dict[str, ColumnFile]()

    def __iter__(self) -> Iterator[str]:
        listed = [] if isinstance(self._roots, UrlRoots) else os.listdir(self._roots.directory)
        found = {match[1] for match in map(FILE.fullmatch, listed) if match}
        return iter(sorted(found | self._known.keys()))

    def __contains__(self, name: str) -> bool:
        return self.get(name) is not None

    def __getitem__(self, name: str) -> ColumnFile:
        """Raises: ConfigError if there is none, FormatError if it is corrupt or of other tokens, ReadError."""
        found = self.get(name)
        if found is None:
            raise unknown(f"{self._roots.directory}: columns", name, self, "column")
        return found

    def get(self, name: str) -> ColumnFile | None:
        """None if there is no such column. Raises: FormatError if it is corrupt or of other tokens, ReadError."""
        if name not in self._known:
            if fmt.name_problem(name):
                return None
            path = self._roots.resolve(column_file(name))
            try:
                column = parse_column(self._roots.load(path), name, self._manifest)
            except ReadError as error:
                if error.errno != errno.ENOENT:
                    raise
                return None
            for kind, files in column.kinds(name).items():
                self._roots.check(filter(None, files.path), f"{path}: {kind}.path")
                self._kinds[kind] = files
            self._known[name] = column
        return self._known[name]
