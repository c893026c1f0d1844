"""Damage under the compiled reader: it gives, or refuses, what the format's reader does, and leaves no buffer."""

import os
import subprocess
import sys
import zlib
from collections import Counter
from itertools import pairwise

import numpy as np
import pytest

import conceptloader as cl
from conceptloader.errors import ConceptloaderError, FormatError
from conceptloader.kernels.library import VARIABLE
from conceptloader.loader.batch.open import batch_layout
from conceptloader.loader.batch.reader import BatchReader
from conceptloader.storage import reads as io
from tests.corpora.variants import SEQ_LEN, Variant
from tests.corruption import guarded
from tests.corruption.mutations import write
from tests.corruption.test_datasets import Subject, consistent, manifest, raw
from tests.scale import scaled

VARIANTS = [
    Variant("stream-with-metadata", "dense"),
    Variant("stream-with-metadata", "spans"),
    Variant("document", "dense"),
    Variant("document", "spans"),
    Variant("token-stream", "none", "none"),
    Variant("adopted", "none", "none"),
]


@pytest.fixture(scope="module", params=VARIANTS, ids=str)
def subject(request, tmp_path_factory):
    return Subject(tmp_path_factory.mktemp("damaged") / "ds", request.param)


@pytest.fixture(autouse=True)
def pages(monkeypatch):
    guarded.install(monkeypatch)
    monkeypatch.setattr(io, "sleep", lambda seconds: None)


def read(subject, layout):
    """(rows or error) of both readers."""
    config = {
        "seq_len": SEQ_LEN,
        "datasets": {"a": {"path": str(subject.path)}},
        "loader": {"verify_files": False},  # as damage that no sample meets
        "outputs": {"position_ids": "document", "document_ids": True, "cu_seqlens": True, "loss_on_eos": False},
    }
    if subject.variant.mode == "adopted":
        config["outputs"]["loss_on_eos"] = True
    if subject.variant.codec == "concepts":
        config["tracks"] = {"notes": {"layout": layout}}
    blend = cl.open_blend(cl.load_config(config))
    made = batch_layout(blend)
    compiled = BatchReader(blend.order, blend.views, made)
    guarded.guard_tables(compiled)
    samples = np.arange(min(64, blend.order.sizes[0]), dtype=np.uint64)
    try:
        wanted = _outcome(lambda: [row_of(blend, made, sample) for sample in samples.tolist()])
        found = _outcome(lambda: compiled.read(samples, guarded.allocate))
    finally:
        for ds in blend.datasets.values():
            ds.close()
    return wanted, found if isinstance(found, Exception) else rows_of(found, wanted)


def _outcome(call):
    try:
        return call()
    except ConceptloaderError as error:
        return error


def row_of(blend, layout, sample):
    """What the format's reader says of a sample's tokens, documents and spans."""
    [view], (_, _, number) = blend.views, blend.order.sample(sample)
    dataset, start = view.dataset, view.start + number * SEQ_LEN
    stop = start + SEQ_LEN + 1
    if view.by_document:
        start, stop = dataset.document_range(view.start + number)
        stop = min(stop, start + SEQ_LEN + 1)
    read = dataset.read(start, stop)
    tokens, inputs = read["tokens"].tolist(), min(stop - start, SEQ_LEN)
    row = {"input_ids": tokens[:inputs], "labels": tokens[1:]}
    if "loss_mask" in read:
        eos = dataset.tokenizer and dataset.tokenizer.eos_id
        trained = zip(read["loss_mask"].tolist(), tokens, strict=True)
        row["loss_mask"] = [float(mask != 0 and token != eos) for mask, token in trained][1:]
    if view.by_document:
        row["document_ids"] = [view.start + number] * inputs
    else:
        found = dataset.documents_in(start, stop)
        places = np.searchsorted(found.first, np.arange(start, start + inputs), side="right") - 1
        row["document_ids"] = found.ids[places].tolist()
    for track in layout.read_tracks:
        spans = dataset.spans("notes", start, start + inputs)
        codec, known = dataset.files.concepts("notes"), dataset.tracks["notes"].num_ids
        try:
            ids = [codec.ids_of(record).tolist() for record in spans.records]
        except ValueError as error:
            raise FormatError("notes", str(error)) from error
        most = max(map(len, ids), default=0)
        if len(ids) > track.max_spans or most > track.max_concepts or any(k >= known for one in ids for k in one):
            raise FormatError("notes", "more than the manifest says")
        flags = spans.begins_before + 2 * spans.ends_after
        row["notes"] = [*zip(spans.start.tolist(), spans.end.tolist(), flags.tolist(), ids, strict=True)]
    return row


def rows_of(batch, wanted):
    """The same of a batch: of its arrays what `wanted` has, but for padding."""
    if isinstance(wanted, Exception):
        return batch
    rows = []
    for k, expected in enumerate(wanted):
        row = {name: batch[name][k, : len(value)].tolist() for name, value in expected.items() if name != "notes"}
        if "notes" in expected:
            first, count = k * batch["notes_spans"].shape[1], int(batch["notes_num_spans"][k])
            if "notes_offsets" in batch:
                ends = batch["notes_offsets"][first : first + count + 1].tolist()
                ids = [batch["notes_values"][a:b].tolist() for a, b in pairwise(ends)]
            else:
                slots = zip(batch["notes_ids"][k, :count], batch["notes_counts"][k, :count], strict=True)
                ids = [one[:n].tolist() for one, n in slots]
            spans, flags = batch["notes_spans"][k, :count].tolist(), batch["notes_flags"][k, :count].tolist()
            row["notes"] = [(a, b, flag, one) for (a, b), flag, one in zip(spans, flags, ids, strict=True)]
        rows.append(row)
    return rows


def compare(subject, layout):
    try:
        wanted, compiled = read(subject, layout)
    except ConceptloaderError:
        return "refused"
    if isinstance(wanted, ConceptloaderError) or isinstance(compiled, ConceptloaderError):
        assert isinstance(wanted, ConceptloaderError), f"only the engine refuses: {compiled}"
        assert isinstance(compiled, ConceptloaderError), f"only the format's reader refuses: {wanted}"
        return "error"
    assert wanted == compiled
    return "equal"


@pytest.mark.soak
@pytest.mark.parametrize("damage", [raw, consistent, manifest], ids=lambda damage: damage.__name__)
def test_damage_under_the_engine(subject, damage, tally):
    rng = np.random.default_rng(zlib.crc32(f"engine {subject.variant} {damage.__name__}".encode()))
    assert compare(subject, "padded") == "equal"
    outcomes = Counter()
    for number in range(scaled(10, 250)):
        what, changed = damage(subject.files, rng)
        write(subject.path, changed)
        try:
            outcomes[compare(subject, ("padded", "ragged")[number % 2])] += 1
        except Exception as error:
            raise AssertionError(f"{what}: {type(error).__name__}: {error}") from error
        finally:
            subject.repair(changed)
    tally(f"damage under the engine, {damage.__name__}", {"mutations": sum(outcomes.values()), **outcomes})


@pytest.mark.soak
@pytest.mark.skipif(VARIABLE in os.environ, reason="this is the inner run")
def test_with_bounds_checks(bounds_checks, tally):
    environment = {**bounds_checks, "CONCEPTLOADER_SOAK": ""}
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "--timeout", "3000", __file__]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout[-3000:]
    tally("damage under the engine with bounds checks", {"runs": 1})
