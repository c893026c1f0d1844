"""Input files: which they are, how they can be cut, and how a restart notices that one has changed."""

import logging
import os
import stat
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import xxhash

from conceptloader.errors import ConfigError, InputError, remedy
from conceptloader.format.spec import layout as fmt
from conceptloader.format.write.build import OtherBuild
from conceptloader.ingest.files import EXPECTED, as_paths, input_files, kind_of
from conceptloader.ingest.parquet import row_groups
from conceptloader.ingest.records.lines import read_blocks
from conceptloader.ingest.records.records import read_record
from conceptloader.ingest.records.table import read_objects

log = logging.getLogger(__name__)

_SAMPLES, _SAMPLE_BYTES = 16, 1 << 14


@dataclass(frozen=True, kw_only=True)
class Source:
    """One input file.

    name: path relative to the directory that all inputs share, so that a moved corpus gives the same build.
    compression: None, "gz" or "zst". row_groups: stored bytes of each row group of a parquet file, else None.
    sample: xxh3-64 of pieces spread over the file; with `size` it tells a changed file without reading all of it.
    stamp: (modification, change of status, inode, device) as found before anything was read, times in ns.
    """

    path: str
    name: str
    compression: str | None
    row_groups: tuple[int, ...] | None
    size: int
    sample: str
    stamp: tuple[int, int, int, int] = (0, 0, 0, 0)

    @property
    def whole(self) -> bool:
        """It cannot be cut."""
        return self.compression is not None

    def to_json(self) -> dict[str, Any]:
        return {"name": self.name, "size": self.size, "sample": self.sample}

    def row_name(self, row: int) -> str:
        """What messages call a row of the file."""
        return f"{self.path}: {'line' if self.row_groups is None else 'row'} {row}"

    def check_unchanged(self) -> None:
        """To be called when the file has been read.

        Raises: InputError if it is not the one that was found at first: of another size or time of modification; or
        given another inode or status (a move in its place, its time set back) and with other samples.
        """
        try:
            found = os.stat(self.path)
            same = (found.st_size, found.st_mtime_ns) == (self.size, self.stamp[0])
            if same and (_stamp(found) == self.stamp or _sample(self.path, self.size) == self.sample):
                return
        except OSError as error:
            raise InputError(
                self.path,
                f"cannot be read: {error.strerror}",
                fix=remedy(error, f"run `chmod u+r {self.path}`, or check its disk or mount"),
            ) from error
        raise InputError(
            self.path,
            f"it changed while it was read ({found.st_size} bytes, modified at {found.st_mtime_ns} ns)",
            f"{self.size} bytes, modified at {self.stamp[0]} ns, as at the start",
            "run the same command when the file is complete: what was read of it is not kept",
        )


def read_rows(
    source: Source, column: str | None, on_bad: Callable[[str], None]
) -> Iterator[tuple[int, dict[str, Any]]]:
    """(number, see `row_name`, row) of a file; column: the only one that is wanted of parquet.

    on_bad: called with what is wrong with a row, which is skipped, or with the rest of the file.
    """
    try:
        if source.row_groups is not None:
            yield from read_objects(source.path, column)
            return
        for numbers, rows, _ in read_blocks(source.path, source.compression):
            for number, row in zip(numbers, rows, strict=True):
                try:
                    record = read_record(row)
                except ValueError as error:
                    on_bad(f"{source.row_name(number)}: {error}")
                    continue
                yield number, record
    except InputError as error:
        on_bad(str(error))


def find_sources(inputs: str | os.PathLike[str] | Iterable[str | os.PathLike[str]]) -> list[Source]:
    """The files that `inputs` name, see `input_files`.

    Raises: ConfigError and InputError as that does, and for a file twice or none at all.
    """
    inputs = as_paths(inputs)
    paths = input_files(inputs)
    if not paths:
        named, expected = ", ".join(inputs), f"files that end in {EXPECTED}"
        fix = "pass files with such names, or a directory that holds some"
        raise InputError(f"inputs {named}", "an empty corpus", expected, fix)
    real = [os.path.abspath(path) for path in paths]
    repeated = next((path for path in real if real.count(path) > 1), None) if len(set(real)) < len(real) else None
    if repeated:
        raise ConfigError(f"input {repeated}", "it twice", "each file once", f"pass {repeated} once")
    top = os.path.commonpath([os.path.dirname(path) for path in real])
    sources = [_describe(path, os.path.relpath(path, top), *kind_of(path)) for path in real]
    met: dict[tuple[int, ...], str] = {}
    for source in sources:
        first = met.setdefault(source.stamp[2:], source.path)
        if first != source.path:
            log.warning("%s: found the same file as %s; its records are there twice", source.path, first)
    return sources


def _describe(path: str, name: str, kind: str, compression: str | None) -> Source:
    try:
        found = os.stat(path)
        if not stat.S_ISREG(found.st_mode):
            raise ConfigError(
                f"input {path}", "no regular file", "a regular file", "write the records to a file, and pass that"
            )
        sample = _sample(path, found.st_size)
    except OSError as error:
        fix = remedy(error, f"run `chmod u+r {path}`, or check its disk or mount")
        raise InputError(path, f"cannot be read: {error.strerror}", fix=fix) from error
    groups = tuple(size for size, _ in row_groups(path)) if kind == "table" else None
    return Source(
        path=path, name=name, compression=compression, row_groups=groups, size=found.st_size, sample=sample,
        stamp=_stamp(found),
    )  # fmt: skip


def _stamp(found: os.stat_result) -> tuple[int, int, int, int]:
    return found.st_mtime_ns, found.st_ctime_ns, found.st_ino, found.st_dev


def _sample(path: str, size: int) -> str:
    digest = xxhash.xxh3_64()
    step = max(_SAMPLE_BYTES, (size - _SAMPLE_BYTES) // (_SAMPLES - 1)) if size > _SAMPLE_BYTES else _SAMPLE_BYTES
    with open(path, "rb") as file:
        for offset in range(0, size, step):
            file.seek(offset)
            digest.update(file.read(_SAMPLE_BYTES))
    return digest.hexdigest()


def check_since_start(directory: str, sources: Sequence[Source]) -> None:
    """No input was modified after the build in `directory` began, by its time: samples in build.json miss small edits.

    Raises: OtherBuild.
    """
    began = os.stat(os.path.join(directory, fmt.BUILD)).st_mtime_ns
    for source in sources:
        if source.stamp[0] > began:
            raise OtherBuild(
                f"{source.path}",
                f"a modification time of {source.stamp[0]} ns",
                f"no change after {began} ns, when the build in {directory} began",
                f"pass another --out, or run `rm -r {directory}`",
            )
