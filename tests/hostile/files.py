"""Targets below the manifest: files of a dataset under both readers, records of every codec, answers of object stores.

A wrong array counts here as an exception does: the readers have to agree, and what a store's answers give is the
dataset's content or an error.
"""

import errno
from types import SimpleNamespace

import pytest

import conceptloader as cl
from conceptloader.errors import ReadError
from conceptloader.storage import reads as io
from conceptloader.storage.objects import Part
from conceptloader.storage.remote import objects
from tests.corpora.variants import Variant, everything
from tests.corruption import guarded
from tests.corruption.mutations import with_matching_manifest
from tests.corruption.test_engine import compare

SPANS, DENSE = Variant("stream-with-metadata", "spans"), Variant("stream-with-metadata", "dense")
TABLES = ("stream.bin", "documents.bin", "notes.index", "notes.data", "notes.spans")
ENGINE = [*((SPANS, suffix) for suffix in TABLES), (DENSE, "stream.bin")]
CODECS = [(Variant("document", "spans", codec), "notes.data") for codec in ("concepts", "json", "numpy")]
CODECS += [(SPANS, "documents.ids"), (SPANS, "documents.hash")]


class Places:
    """Datasets by variant. The first byte of an input says which file of which of them the others replace."""

    def __init__(self, root, choices):
        self._choices = choices
        self._paths = {variant: root / str(variant) for variant, _ in choices}
        for variant, path in self._paths.items():
            if not path.exists():
                variant.build(path)

    def sound(self):
        """Each file as it is."""
        return [
            bytes([k]) + (self._paths[variant] / f"00001.{suffix}").read_bytes()
            for k, (variant, suffix) in enumerate(self._choices)
        ]

    def damaged(self, directory, data):
        """A dataset with the file, and a manifest that agrees: as of a wrong or hostile writer."""
        variant, suffix = self._choices[data[0] % len(self._choices)] if data else self._choices[0]
        files = {file.name: file.read_bytes() for file in self._paths[variant].iterdir()}
        files |= with_matching_manifest(files, {f"00001.{suffix}": data[1:]})
        path = directory / "ds"
        path.mkdir()
        for name, content in files.items():
            (path / name).write_bytes(content)
        return path, variant


def engine(places):
    """The compiled reader and the plain one give the same arrays, or both an error."""

    def run(directory, data):
        path, variant = places.damaged(directory, data)
        subject = SimpleNamespace(path=path, variant=variant)
        with pytest.MonkeyPatch.context() as patch:
            guarded.install(patch)
            patch.setattr(io, "sleep", lambda seconds: None)
            outcome = compare(subject, "ragged" if len(data) % 2 else "padded")
        if outcome != "equal":
            raise cl.errors.FormatError(outcome)

    return run


def records(places):
    """Everything that can be read."""

    def run(directory, data):
        path, _ = places.damaged(directory, data)
        problems = cl.verify(path, full=True)
        everything(path)
        if problems:
            raise cl.errors.FormatError(str(problems[0]))

    return run


class Answers:
    """An object store that answers as the bytes say: above 200 wrongly, in a way that clients can notice."""

    def __init__(self, root, plan):
        self._root, self._plan = root, iter(plan)

    def _file(self, path):
        file = self._root / path.removeprefix("fuzz://bucket/")
        if not file.is_file():
            raise ReadError(path, "not there", errno=errno.ENOENT)
        return file.read_bytes()

    def get(self, path, offset, size):
        data, kind = self._file(path), next(self._plan, 0)
        if not size:
            return Part(b"", len(data) + (kind - 225 if kind > 200 else 0), "1")
        part, whole, version = data[offset : offset + size], len(data), "1"
        if kind > 250:
            raise ReadError(path, kind, errno=errno.EIO)
        if kind > 240:
            part = part[: kind % 7]
        elif kind > 230:
            part = part + bytes(kind % 7 + 1)
        elif kind > 220:
            whole += kind - 225
        elif kind > 210:
            version = str(kind)
        elif kind > 200:
            part = b""
        return Part(part, whole, version)


def store(dataset):
    """What is read of a dataset in an object store is what it holds, or an error."""

    def read(path):
        with cl.open_dataset(path) as ds:
            whole = ds.read(0, ds.num_tokens, sorted(ds.tracks), documents=True)
            spans = [whole[track].start.tolist() + whole[track].end.tolist() for track in sorted(ds.tracks)]
            return whole["tokens"].tolist(), whole["documents"].first.tolist(), spans

    wanted = read(dataset)

    def run(_directory, data):
        with pytest.MonkeyPatch.context() as patch:
            answers = Answers(dataset.parent, data)
            patch.setattr(objects, "store_of", lambda url: answers)
            patch.setattr(io, "BACKOFF_S", (0.0,) * 4)
            assert read(f"fuzz://bucket/{dataset.name}") == wanted

    return run
