"""Token fields, numbers and records in batches, against what was written, token by token."""

from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import conceptloader as cl
from conceptloader.batch.open import decide_layout
from conceptloader.batch.reader import BatchReader
from conceptloader.blend import ConceptOptions, Outputs, View
from conceptloader.blend.packing import Packing
from conceptloader.errors import ConfigError, FormatError
from conceptloader.format.spec.layout import FIELD_TYPES
from conceptloader.testing import PlainReader
from tests.batch.cases import make_view
from tests.batch.compare import assert_same
from tests.packing.packed import make_view as make_packs
from tests.raises import raises

ALL_FIELDS = {f"x{kind}": ("inputs", "labels")[k % 2] for k, kind in enumerate(FIELD_TYPES)}
Truth = dict[str, np.ndarray[Any, Any]]


def build(path: Path, seed: int, weight: str = "f2", mode: str = "stream-with-metadata", **fixed: Any) -> Truth:
    """Two shards of documents; a field of each type, a weight, numbers and records. Returns: by token; -1 or None where
    there is none."""
    rng = np.random.default_rng(seed)
    types = {f"x{kind}": kind for kind in FIELD_TYPES} | {"w": weight} | fixed.get("fields", {})
    number = fixed.get("number", str(rng.choice(FIELD_TYPES)))
    encoding = str(rng.choice(["dense", "spans"]))
    tracks = {
        "quality": cl.TrackOptions(codec="numpy", parameters={"dtype": number}, encoding=encoding),
        "notes": cl.TrackOptions(codec="json", encoding=encoding),
    }
    options = cl.BuildOptions(tracks=tracks, fields=types, block_tokens=16, mode=mode)
    written, found = cl.create_build(path, options, plan=[0, 1]), []
    for part in range(2):
        with written.shard(part) as shard:
            for _ in range(int(rng.integers(2, 7))):
                n = int(rng.integers(0, 60))
                truth: dict[str, Any] = {"tokens": rng.integers(1, 9, n)}
                for name, kind in types.items():
                    size = np.dtype(kind).itemsize
                    raw = rng.integers(0, 256, n * size, np.uint8).view(kind)  # NaN of any sort among them
                    truth[name] = np.where(np.isfinite(raw), raw, 1).astype(kind) if name == "w" else raw
                borders = np.unique(rng.integers(0, n + 1, 5))
                spans: dict[str, list[Any]] = {"quality": [], "notes": []}
                numbers, notes = np.zeros(n, number), np.full(n, None)
                for a, b in pairwise(borders.tolist()):
                    if rng.random() < 0.7:
                        spans["quality"].append((a, b, rng.integers(1, 100, 1).astype(number)))
                        numbers[a:b] = spans["quality"][-1][2]
                    if rng.random() < 0.7:
                        spans["notes"].append((a, b, {"at": f"{part}/{shard.documents}/{a}" * int(rng.integers(1, 9))}))
                        notes[a:b] = [spans["notes"][-1][2]] * (b - a)
                shard.add_document(truth["tokens"], spans, fields={name: truth[name] for name in types})
                found.append({**truth, "quality": numbers, "notes": notes})
    cl.finalize(path)
    return {name: np.concatenate([one[name] for one in found]) for name in found[0]}


def batches(view: View, seq_len: int, outputs: Outputs, tracks: dict[str, ConceptOptions], size: int = 0) -> Any:
    """All samples of a view by the plain reader, which those of the compiled one equal."""
    layout = decide_layout([view], seq_len, outputs, tracks)
    numbers = np.arange(view.count, dtype=np.uint64)
    picked = np.zeros(view.count, np.int64), numbers
    plain = PlainReader(None, [view], layout).read(numbers, picked=picked)
    compiled = BatchReader(None, [view], layout)
    for _ in range(2):
        found = compiled.read(numbers, picked=picked)
        for batch in (found, plain):
            batch["notes_records"] = np.array([str(row) for row in batch["notes_records"]])
        assert_same(found, plain)
        plain["notes_records"] = compiled.read(numbers, picked=picked)["notes_records"]
    return plain


@pytest.mark.parametrize("seed", range(16))
def test_what_was_written_is_in_the_batch(tmp_path: Path, seed: int) -> None:
    """Windows, documents, packs; with quarantined tokens, borders of shards and shared labels. Weights are those of a
    field, and with later seeds those of a track."""
    rng = np.random.default_rng(100 + seed)
    kind = ("window", "document", "pack", "window")[seed % 4]
    mode = "document" if kind == "document" else "stream-with-metadata"
    types = {"weight": ("f2", "f4")[seed % 2], **({"number": ("f4", "f2")[seed % 2]} if seed >= 8 else {})}
    truth = build(tmp_path / "ds", seed, mode=mode, **types)
    ds = cl.open_dataset(tmp_path / "ds")
    size = int(rng.integers(5, 30))
    quarantine = [(20, 24)] if seed % 3 == 1 else []
    if kind == "pack":
        view = make_packs(tmp_path / "ds", Packing(seq_len=size, bins=4), quarantine)
    else:
        count = ds.num_documents if kind == "document" else (ds.num_tokens - 1) // size
        view = make_view("x", ds, 0, 0, count, size, quarantine)
    outputs = Outputs(loss_weight="w", fields=ALL_FIELDS, shared_labels=kind != "pack" and seed > 3, eos_loss=True)
    if seed >= 8:
        outputs = replace(outputs, loss_weight={"name": "quality", "outside": 0.25})
        truth["w"] = np.where(truth["quality"] > 0, truth["quality"], 0.25)
        view = replace(view, tracks=("notes", "quality"))
    spans = int(rng.integers(1, 4)) if seed % 2 else None
    tracks = {
        "quality": ConceptOptions(max_spans=spans, overflow="mark"),
        "notes": ConceptOptions(layout="records", max_spans=spans, overflow="mark"),
    }
    batch = batches(view, size, outputs, tracks)
    assert batch["loss_weight"].dtype == np.float32
    seen = 0
    for row in range(view.count):
        for part in cl.blend.samples.parts_of(view, row, size):
            if part.since == 0:
                continue
            for j in range(part.inputs):
                token, at = part.start + j, part.place + j
                assert batch["input_ids"][row, at] == truth["tokens"][token]
                for name, place in ALL_FIELDS.items():
                    if place == "inputs":
                        assert batch[name][row, at].tobytes() == truth[name][token].tobytes()
                index = batch["quality_span_index"][row, at]
                if index >= 0:
                    assert batch["quality_values"][row, index] == truth["quality"][token]
                    seen += 1
                if (index := batch["notes_span_index"][row, at]) >= 0:
                    assert batch["notes_records"][row][index] == truth["notes"][token]
                else:
                    assert index == -2 or truth["notes"][token] is None
            for j in range(part.stop - part.start - 1):
                token, at = part.start + j + 1, part.place + j
                assert batch["labels"][row, at] == truth["tokens"][token]
                assert batch["loss_weight"][row, at] == np.float32(truth["w"][token])
                for name, place in ALL_FIELDS.items():
                    if place == "labels":
                        assert batch[name][row, at].tobytes() == truth[name][token].tobytes()
    assert seen
    masked = batch["loss_mask"] == 0
    assert not batch["loss_weight"][masked].any()
    assert not batch["xf8"][batch["input_ids"] == 0].any()  # padding


@pytest.mark.parametrize("name", ["own", "quality"])
def test_a_dataset_without_weights_has_the_one_that_is_given(tmp_path: Path, name: str) -> None:
    """Nothing is guessed, neither 1 nor 0: one of the two would train with other weights than its user thinks."""
    build(tmp_path / "a", 1, fields={"own": "f4"}, number="f4")
    build(tmp_path / "b", 2, number="f4")
    views = [make_view(n, cl.open_dataset(tmp_path / n), k, 0, 3, 9) for k, n in enumerate("ab")]
    views[1] = replace(views[1], tracks=())
    message = rf"outputs\.loss_weight: found no (field|track that is read) called '{name}' in b .* missing: 1"
    for given in (name, {"name": name, "outside": 2}):
        with pytest.raises(ConfigError, match=message):
            decide_layout(views, 9, Outputs(loss_weight=given))  # type: ignore[arg-type]
    given = {"name": name, "missing": -0.375, **({"outside": 0.125} if name == "quality" else {})}
    layout = decide_layout(views, 9, Outputs(loss_weight=given))  # type: ignore[arg-type]
    assert layout.names() == decide_layout(views, 9, Outputs()).names() | {"loss_weight"}
    samples = np.arange(6, dtype=np.uint64)
    picked = np.repeat([0, 1], 3), samples % np.uint64(3)
    found = [engine(None, views, layout).read(samples, picked=picked) for engine in (BatchReader, PlainReader)]
    assert_same(*found)
    assert found[0].keys() == layout.names()
    assert (found[0]["loss_weight"][3:] == -0.375).all()
    assert (found[0]["loss_weight"][:3] != -0.375).all()
    assert (found[0]["loss_weight"][:3] == 0.125).any() == (name == "quality")


def test_what_does_not_fit_is_an_error_before_training(tmp_path: Path) -> None:
    build(tmp_path / "a", 1, fields={"own": "f4", "changing": "f4", "max_seqlen": "u1"}, number="f4")
    build(tmp_path / "b", 2, fields={"changing": "f2"}, number="f8")
    views = [make_view(n, cl.open_dataset(tmp_path / n), k, 0, 3, 9) for k, n in enumerate("ab")]
    wrong: list[tuple[str, dict[str, Any], dict[str, Any]]] = [
        (
            r"outputs\.fields\.own: dataset b has no field 'own', the fields are \['changing'",
            {"fields": {"own": "inputs"}},
            {},
        ),
        (r"outputs\.fields\.changing: found type f4 in dataset a, but f2 in b", {"fields": {"changing": "inputs"}}, {}),
        (r"loss_weight: found no field and no track .* 'nil' in a, b .*correct the name", {"loss_weight": "nil"}, {}),
        (r"outputs\.loss_weight: found 'xu1' of type u1, u1, expected f2 or f4", {"loss_weight": "xu1"}, {}),
        (r"outputs\.loss_weight: found 'notes' of type json, json, expected f2 or f4", {"loss_weight": "notes"}, {}),
        (r"outputs\.loss_weight: found 'quality' of type f4, f8, expected f2 or f4", {"loss_weight": "quality"}, {}),
        (r"two arrays of a batch would be called max_seqlen", {"fields": {"max_seqlen": "inputs"}}, {}),
        (r"concepts\.quality: found type f4 in dataset a, but f8 in b", {}, {"quality": {}}),
        (r"concepts\.quality: found layout ragged .* for a track of numbers", {}, {"quality": {"layout": "ragged"}}),
        (r"concepts\.quality: found layout padded and max_concepts 2", {}, {"quality": {"max_concepts": 2}}),
        (r"concepts\.notes: dataset a has codec json, .* set layout: records", {}, {"notes": {}}),
        (r"concepts\.notes\.max_concepts: found", {}, {"notes": {"layout": "records", "max_concepts": 1}}),
    ]
    for message, outputs, tracks in wrong:
        with pytest.raises(ConfigError, match=message):
            decide_layout(views, 9, Outputs(**outputs), {k: ConceptOptions(**v) for k, v in tracks.items()})
    with raises(ConfigError, "fields.own", "'both'"):
        Outputs(fields={"own": "both"})  # type: ignore[dict-item]


@pytest.mark.parametrize("kind", ["f2", "f4"])
@pytest.mark.parametrize("value", [np.nan, -np.inf])
def test_a_weight_that_is_no_number_is_an_error(tmp_path: Path, kind: str, value: float) -> None:
    build = cl.create_build(tmp_path / "ds", cl.BuildOptions(fields={"w": kind}))
    with build.shard(0) as shard:
        shard.add_document([1] * 20, fields={"w": [1.0] * 15 + [value] + [0.5] * 4})
    cl.finalize(tmp_path / "ds")
    view = make_view("x", cl.open_dataset(tmp_path / "ds"), 0, 0, 2, 9)
    layout = decide_layout([view], 9, Outputs(loss_weight="w"))
    said = rf"00000\.stream\.bin: found {value} in field w as the weight of token 15 of shard 0"
    for reader, match in ((BatchReader(None, [view], layout), said), (PlainReader(None, [view], layout), "field w")):
        assert reader.read(*[np.zeros(1, np.uint64)], picked=(np.zeros(1, np.int64), np.zeros(1, np.uint64)))
        with pytest.raises(FormatError, match=match):
            reader.read(*[np.ones(1, np.uint64)], picked=(np.zeros(1, np.int64), np.ones(1, np.uint64)))


def test_a_weight_of_a_track_that_is_no_number_is_an_error(tmp_path: Path) -> None:
    track = cl.TrackOptions(codec="numpy", parameters={"dtype": "f4"})
    build = cl.create_build(tmp_path / "ds", cl.BuildOptions(tracks={"t": track}))
    with build.shard(0) as shard:
        shard.add_document([1] * 20, {"t": [(0, 10, np.array([3.0])), (10, 12, np.array([np.nan]))]})
    cl.finalize(tmp_path / "ds")
    view = make_view("x", cl.open_dataset(tmp_path / "ds"), 0, 0, 2, 9)
    with raises(ConfigError, found="found the track 't', but no weight of tokens in none of its spans"):
        decide_layout([view], 9, Outputs(loss_weight="t"))
    layout = decide_layout([view], 9, Outputs(loss_weight={"name": "t", "outside": 1}))  # type: ignore[arg-type]
    said = "sample 7: track t: found a weight that is no finite number"
    for reader, match in ((BatchReader(None, [view], layout), said), (PlainReader(None, [view], layout), "track t")):
        found = reader.read(np.zeros(1, np.uint64), picked=(np.zeros(1, np.int64), np.zeros(1, np.uint64)))
        assert (found["loss_weight"] == 3).all()
        with pytest.raises(FormatError, match=match):
            reader.read(np.full(1, 7, np.uint64), picked=(np.zeros(1, np.int64), np.ones(1, np.uint64)))


@pytest.mark.parametrize("wrong", [[], [1.0, 2.0]])
def test_a_span_with_no_single_number_is_an_error(tmp_path: Path, wrong: list[float]) -> None:
    track = cl.TrackOptions(codec="numpy", parameters={"dtype": "f4"})
    build = cl.create_build(tmp_path / "ds", cl.BuildOptions(tracks={"t": track}))
    with build.shard(0) as shard:
        shard.add_document([1] * 20, {"t": [(0, 5, np.array([3.0])), (5, 9, np.array(wrong))]})
    cl.finalize(tmp_path / "ds")
    view = make_view("x", cl.open_dataset(tmp_path / "ds"), 0, 0, 2, 9)
    layout = decide_layout([view], 9, Outputs(), {"t": ConceptOptions()})
    zeros = np.zeros(1, np.uint64)
    with raises(FormatError, expected="a single number"):
        PlainReader(None, [view], layout).read(zeros, picked=(zeros.astype(np.int64), zeros))
    said = (
        rf"00000\.t\.index: found {4 * len(wrong)} bytes as record 1 of track t, expected a single number of 4 bytes; "
        ".*, or set layout: records"
    )
    with pytest.raises(FormatError, match=said):
        BatchReader(None, [view], layout).read(zeros, picked=(zeros.astype(np.int64), zeros))
