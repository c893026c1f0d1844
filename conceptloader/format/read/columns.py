"""The columns of a dataset: found when they are asked for, since no manifest names them."""

import errno
import os
from collections.abc import Iterator

from conceptloader.base.strict import unknown
from conceptloader.errors import ReadError
from conceptloader.format.read.files import Files
from conceptloader.format.spec.columnfile import FILE, ColumnFile, column_file, parse_column


class Columns:
    """By name; a subset has those of its source.

    Each is read when it is first asked for, and stays what it was then. The names are those in a local directory; a
    store is asked for a column by its name alone.

    Args:
        files: Of the dataset; they are extended by those of each column that is asked for.
    """

    def __init__(self, files: Files) -> None:
        self._files, self._known = files, dict[str, ColumnFile]()

    def __iter__(self) -> Iterator[str]:
        if self._files.local is None:
            return iter(sorted(self._known))
        found = map(FILE.fullmatch, os.listdir(self._files.roots.directory))
        return iter(sorted(match[1] for match in found if match))

    def __contains__(self, name: str) -> bool:
        return self.get(name) is not None

    def __getitem__(self, name: str) -> ColumnFile:
        """Raises: ConfigError if there is none, FormatError if it is corrupt or of other tokens, ReadError."""
        found = self.get(name)
        if found is None:
            raise unknown(f"{self._files.roots.directory}: columns", name, self, "column")
        return found

    def get(self, name: str) -> ColumnFile | None:
        """None if there is no such column. Raises: FormatError if it is corrupt or of other tokens, ReadError."""
        if name not in self._known:
            roots = self._files.roots
            path = roots.resolve(column_file(name))
            try:
                column = parse_column(roots.load(path), name, self._files.manifest)
            except ReadError as error:
                if error.errno != errno.ENOENT:
                    raise
                return None
            for kind, files in column.kinds(name).items():
                roots.check(filter(None, files.path), f"{path}: {kind}.path")
                self._files.kinds[kind] = files
            self._known[name] = column
        return self._known[name]
