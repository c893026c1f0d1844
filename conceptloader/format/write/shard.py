"""Writing one shard: documents in, files out. Knows nothing of other shards, so any process can write any shard."""

import os
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from conceptloader.errors import InputError
from conceptloader.format.spec import layout as fmt
from conceptloader.format.spec.codecs import Codec
from conceptloader.format.spec.columns import Ints, as_field
from conceptloader.format.spec.jsonfile import dump_json
from conceptloader.format.spec.layout import StreamLayout
from conceptloader.format.spec.options import BuildOptions
from conceptloader.format.write.tables import BlockTable, Ids
from conceptloader.format.write.track import BulkSpans, TrackWriter
from conceptloader.storage.durable import Spool, sync_directory, write_file

_CHUNK_TOKENS = 1 << 19


def _check_id(found: str, where: str) -> bytes:
    try:
        return str.encode(found)
    except (TypeError, UnicodeEncodeError) as error:
        raise InputError(
            f"{where}: id", repr(found), f'text, or "" for none ({error})', "pass id as text that is valid UTF-8"
        ) from error


class ShardWriter:
    """Writes one shard; use it as a context manager, which finishes it, or discards it when an error passes through.

    Nothing has its final name before `finish`, and the shard counts as finished only when `<shard>.shard.json`
    exists, which is written last.

    notes: JSON about the shard that it keeps for the caller under this key; see `Build.report`.
    """

    def __init__(
        self, directory: str, name: str, options: BuildOptions, codecs: Mapping[str, Codec], identity: Mapping[str, Any]
    ) -> None:
        self.name = name
        self.options = options
        self.tokens = 0
        self.documents = 0
        self.notes: dict[str, Any] = {}
        self._directory = directory
        self._identity = dict(identity)
        self._limit = options.token_limit
        self._type = np.dtype("<" + options.written_type)
        self._field_types = {field: np.dtype("<" + code) for field, code in options.fields.items()}
        self._spools = ExitStack()
        self._stream = self._spool("tokens")
        self._fields = {field: self._spool(f"{field}.field") for field in options.fields}
        self._starts = self._spool("documents.bin")
        self._blocks = BlockTable(self._path("documents.blocks"), options.block_tokens, self._spools)
        self._ids: Ids | None = None
        self._tracks = {
            track: TrackWriter(self._path(track), codecs[track], track_options, options.block_tokens, self._spools)
            for track, track_options in options.tracks.items()
        }
        self._open = True
        self._whole = True  # no document is written in part

    def _path(self, kind: str) -> str:
        return os.path.join(self._directory, f"{self.name}.{kind}")

    def _spool(self, kind: str) -> Spool:
        return self._spools.enter_context(Spool(self._path(kind)))

    def __enter__(self) -> "ShardWriter":
        return self

    def __exit__(self, kind: object, *_: object) -> None:
        if kind is not None:
            self.discard()
        elif self._open:
            self.finish()

    def add_document(
        self,
        tokens: ArrayLike,
        spans: Mapping[str, Sequence[tuple[int, int, Any]]] | None = None,
        id: str = "",
        fields: Mapping[str, ArrayLike] | None = None,
    ) -> None:
        """Append one document; it may be empty.

        tokens: ids [n], below the vocabulary size. spans: for each track (start, end, record) in order, without
        overlap, in tokens of this document; tokens in between belong to no record. A record is its bytes, the number
        of a record added before (`add_record`), or else an object that the track's codec encodes. id: the
        document's external id. fields: an array [n] for each field of the options.

        Raises: InputError that names the document; nothing of the document has been written then.
        """
        where = f"document {id!r}" if id else f"document {self.documents} of shard {self.name}"
        self._append(where, tokens, None, spans or {}, [id], fields or {})

    def add_documents(
        self,
        tokens: NDArray[Any],
        offsets: Ints,
        spans: Mapping[str, BulkSpans],
        ids: Sequence[str],
        fields: Mapping[str, ArrayLike] | None = None,
    ) -> None:
        """Append a batch of documents: document i has tokens[offsets[i]:offsets[i + 1]] and the id ids[i] ("": none).

        The same files as from `add_document` for each of them. tokens: flat; offsets: int64 [n + 1]; fields: aligned
        with `tokens`. Raises: InputError; nothing of the batch has been written then.
        """
        where = f"shard {self.name}, documents {self.documents} to {self.documents + len(ids) - 1}"
        if (
            len(offsets) != len(ids) + 1
            or offsets.dtype.kind not in "iu"
            or offsets[0]
            or offsets[-1] != len(tokens)
            or (np.diff(offsets) < 0).any()
        ):
            raise InputError(
                where,
                "offsets that do not fit tokens and ids",
                f"{len(ids) + 1} offsets that fit them",
                f"pass {len(ids) + 1} offsets, ascending from 0 to the number of tokens",
            )
        self._append(where, tokens, offsets, spans, ids, fields or {})

    def _append(
        self,
        where: str,
        tokens: ArrayLike,
        offsets: Ints | None,
        spans: Mapping[str, Sequence[tuple[int, int, Any]] | BulkSpans],
        ids: Sequence[str],
        fields: Mapping[str, ArrayLike],
    ) -> None:
        """Check documents, then write them. offsets: None for one."""
        self._check_whole()
        values = self._check_tokens(tokens, where)
        columns = self._check_fields(fields, len(values), where)
        names = [_check_id(one, where) for one in ids]
        unknown = sorted(set(spans) - set(self._tracks))
        if unknown:
            raise InputError(
                where,
                f"spans of {unknown}",
                f"tracks among {sorted(self._tracks)}",
                "pass spans= with tracks that the build names",
            )
        borders = np.array([0, len(values)], np.int64) if offsets is None else offsets
        checked = {}
        for track, found in spans.items():
            at = where if offsets is None else f"{where}, track {track!r}"
            checked[track] = self._tracks[track].check(found, borders, at)
        self._whole = False
        for track, bulk in checked.items():
            self._tracks[track].add(self.tokens, bulk)
        for field, column in columns.items():
            self._fields[field].write(column)
        self._stream.write(values)
        starts = (borders[:-1] + self.tokens).astype(fmt.OFFSET)
        self._starts.write(starts)
        self._blocks.add(starts)
        if any(names) and self._ids is None:
            self._ids = Ids(self._path("documents"), self._spools)
            self._ids.skip(self.documents)
        if self._ids is not None and names:
            self._ids.add(names)
        self.documents += len(names)
        self.tokens += len(values)
        self._whole = True

    def _check_whole(self) -> None:
        if not self._whole:
            raise InputError(
                f"shard {self.name}",
                "a document that an error or an interrupt left incomplete in its files",
                "complete documents",
                "discard this writer and write the shard again",
            )

    def add_record(self, track: str, record: Any) -> int:
        """Store a record that several spans of this shard share. Returns: its number, to be used in spans."""
        if track not in self._tracks:
            raise InputError(
                f"shard {self.name}",
                f"track {track!r}",
                f"one of {sorted(self._tracks)}",
                "pass a track that the build names",
            )
        self._check_whole()
        data = self._tracks[track].encode(record, f"shard {self.name}")
        self._whole = False
        number = self._tracks[track].add_record(data)
        self._whole = True
        return number

    def _check_tokens(self, tokens: ArrayLike, where: str) -> NDArray[Any]:
        ids = np.asarray(tokens)
        if ids.ndim != 1 or (ids.size and ids.dtype.kind not in "iu"):
            raise InputError(
                f"{where}: tokens",
                f"{ids.dtype} of shape {ids.shape}",
                "a list of integers",
                "pass tokens as integers: np.asarray(tokens, np.uint32)",
            )
        if ids.size:
            low, high = int(ids.min()), int(ids.max())
            if low < 0 or high >= self._limit:
                raise InputError(
                    where,
                    f"token {low if low < 0 else high}",
                    f"ids in [0, {self._limit})",
                    "check that the tokens are of the build's tokenizer (--tokenizer, --vocab-size)",
                )
        return np.ascontiguousarray(ids, self._type)

    def _check_fields(self, fields: Mapping[str, ArrayLike], length: int, where: str) -> dict[str, NDArray[Any]]:
        if set(fields) != set(self._fields):
            raise InputError(
                where,
                f"fields {sorted(fields)}",
                f"{sorted(self._fields)}",
                "pass fields= with the names that the build has",
            )
        columns = {}
        for field, values in fields.items():
            dtype = self._field_types[field]
            array = np.asarray(values)
            if array.shape != (length,):
                raise InputError(
                    f"{where}: field {field}",
                    f"shape {array.shape}",
                    f"({length},)",
                    f"pass {length} values of {field}, one per token",
                )
            try:
                columns[field] = as_field(array, dtype)
            except ValueError as error:
                raise InputError.saying(f"{where}: field {field}", str(error)) from error
        return columns

    def finish(self) -> None:
        """Complete, sync and name all files, then declare the shard finished."""
        self._open = False
        with self._spools:  # ends with them: working files, after an error everything that has no final name
            files, facts = self._complete()
            for spool in files.values():
                spool.commit()
            sync_directory(self._directory)
            facts["files"] = {kind: files[kind].facts() for kind in sorted(files)}
            report = {"format": "conceptstream-shard", **self._identity, **facts}
            write_file(self._path("shard.json"), dump_json(report))

    def weigh(self) -> int:
        """The bytes of the files that `finish` would leave; all of them are removed."""
        self._open = False
        with self._spools:
            return sum(spool.size for spool in self._complete()[0].values())

    def _complete(self) -> tuple[dict[str, Spool], dict[str, Any]]:
        """The files by kind, which are not synced, and what the shard's report says."""
        self._check_whole()
        block = self.options.block_tokens
        encodings = {name: writer.encoding(self.tokens, block) for name, writer in self._tracks.items()}
        dense = [name for name, encoding in encodings.items() if encoding == fmt.DENSE]
        layout = fmt.make_layout(self.options.written_type, self.options.fields, dense)
        token_checksum = self._stream.checksum
        stream = self._interleave(layout, dense) if len(layout.fields) > 1 else self._stream
        stream.path = self._path("stream.bin")
        files: dict[str, Spool] = {"stream.bin": stream, "documents.bin": self._starts}
        self._starts.write(np.array([self.tokens], fmt.OFFSET))
        self._blocks.finish(self.tokens, self._starts)
        if self._ids is not None:
            files.update({kind: self._spool(kind) for kind in ("documents.ids", "documents.hash")})
            self._ids.finish(files["documents.ids"], files["documents.hash"])
        tracks = {}
        for name, writer in self._tracks.items():
            tracks[name] = writer.finish(self.tokens, encodings[name])
            files.update({f"{name}.{kind}": spool for kind, spool in writer.files.items()})
        facts = {
            "tokens": self.tokens,
            "layout": [list(pair) for pair in layout.fields],
            "documents": self.documents,
            "token_checksum": token_checksum,
            "files": {},
            "tracks": tracks,
            **({"notes": self.notes} if self.notes else {}),
        }
        return files, facts

    def _interleave(self, layout: StreamLayout, dense: Sequence[str]) -> Spool:
        """The structured stream from its columns, a piece at a time."""
        target = self._spool("stream.bin")
        ids = {fmt.dense_field(name): self._tracks[name].runs.dense(self.tokens, _CHUNK_TOKENS) for name in dense}
        for start in range(0, self.tokens, _CHUNK_TOKENS):
            stop = min(start + _CHUNK_TOKENS, self.tokens)
            items = np.empty(stop - start, layout.dtype)
            items["token"] = self._stream.array(self._type, start, stop)
            for field, spool in self._fields.items():
                items[field] = spool.array(self._field_types[field], start, stop)
            for name, column in ids.items():
                items[name] = next(column)
            target.write(items)
        self._stream.discard()
        return target

    def discard(self) -> None:
        """Remove everything of this shard that has no final name yet."""
        self._open = False
        self._spools.close()
