"""Ids of 2 and 4 bytes and scores of concepts, by both readers, against what was written."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest

import conceptloader as cl
from conceptloader.batch.open import decide_layout
from conceptloader.batch.reader import BatchReader
from conceptloader.blend import ConceptOptions, Outputs
from conceptloader.blend.packing import Packing
from conceptloader.errors import ConfigError, FormatError, InputError
from conceptloader.format.spec.codecs import ConceptsCodec
from conceptloader.testing import PlainReader
from tests.batch.cases import make_view
from tests.batch.compare import assert_same
from tests.packing.packed import make_view as make_packs
from tests.raises import raises

PARAMETERS = [{"ids": i, "scores": s} for i in ("u2", "u4") for s in ("f2", "f4")]
PARAMETERS += [{"ids": "u2"}, {"scores": "f2"}]


def build(path: Path, parameters: dict[str, str], rng: np.random.Generator, long: int = 0) -> list[tuple[Any, ...]]:
    """Returns: (start, end, ids, scores) of each span in the dataset."""
    tracks = {"t": cl.TrackOptions(parameters=parameters)}
    written = cl.create_build(path, cl.BuildOptions(tracks=tracks, block_tokens=16), plan=[0, 1])
    spans, base = [], 0
    for number in range(2):
        with written.shard(number) as shard:
            for k in range(6):
                found, at = [], 0
                while at < 30:
                    n = long if long and k == 3 and at == 0 else int(rng.integers(0, 6))
                    ids = rng.integers(0, 1 << 16 if "ids" in parameters else 1 << 32, n)
                    scores = rng.normal(0, 10.0 ** rng.integers(-7, 4), n).astype(parameters.get("scores", "f4"))
                    end = min(30, at + int(rng.integers(1, 9)))
                    found.append((at, end, (ids, scores) if "scores" in parameters else ids))
                    spans.append((base + at, base + end, ids, scores.astype(np.float32)))
                    at = end + int(rng.integers(0, 3))
                shard.add_document(rng.integers(0, 9, 30), {"t": found})
                base += 30
    cl.finalize(path)
    return spans


@pytest.mark.parametrize(
    "options",
    [
        {},
        {"layout": "ragged"},
        {"layout": "ragged", "max_spans": 2},  # all of them are there in the last window
        {"max_spans": 3, "max_concepts": 2},
        {"max_spans": 2, "overflow": "mark"},
    ],
)
@pytest.mark.parametrize("parameters", PARAMETERS, ids=lambda found: "-".join(found.values()))
def test_scores_of_both_engines(tmp_path: Path, parameters: dict[str, str], options: dict[str, Any]) -> None:
    rng = np.random.default_rng(len(str(parameters)))
    long = 30_000 if options.get("layout") == "ragged" else 0  # more than a buffer holds
    spans = build(tmp_path / "ds", parameters, rng, long)
    ds = cl.open_dataset(tmp_path / "ds")
    assert cl.verify(tmp_path / "ds", full=True) == []
    size, scored = 20, "scores" in parameters
    view = make_view("x", ds, 0, 0, (ds.num_tokens - 1) // size, size)
    outputs, tracks = Outputs(), {"t": ConceptOptions(**{"overflow": "truncate", **options})}
    layout = decide_layout([view], size, outputs, tracks)
    windows = np.arange(view.count, dtype=np.uint64)
    picked = np.zeros(view.count, np.int64), windows
    wanted = PlainReader(None, [view], layout).read(windows, picked=picked)
    assert_same(BatchReader(None, [view], layout).read(windows, picked=picked), wanted)
    packs = make_packs(tmp_path / "ds", Packing(seq_len=70, bins=4))
    layout_of_packs = decide_layout([packs], 70, outputs, tracks)
    pair = [engine(None, [packs], layout_of_packs) for engine in (BatchReader, PlainReader)]
    numbers = np.arange(packs.count, dtype=np.uint64)
    assert_same(*(engine.read(numbers, picked=(np.zeros(packs.count, np.int64), numbers)) for engine in pair))
    assert ("t_scores" in wanted) == scored
    if scored and options.get("layout") == "ragged":
        assert wanted["t_scores"].shape == wanted["t_values"].shape
    for window in range(view.count):
        a, b = window * size, window * size + size
        inside = [span for span in spans if span[0] < b and span[1] > a][: layout.tracks[0].max_spans]
        assert wanted["t_num_spans"][window] == len(inside)
        index = np.full(size, -1)
        for slot, (start, end, _, _) in enumerate(span for span in spans if span[0] < b and span[1] > a):
            left_out = -2 if options.get("overflow") == "mark" else -1
            index[max(start - a, 0) : end - a] = slot if slot < len(inside) else left_out
        assert wanted["t_span_index"][window].tolist() == index.tolist()
        for slot, (_, _, ids, scores) in enumerate(inside):
            n, at = min(len(ids), layout.tracks[0].max_concepts), window * layout.tracks[0].max_spans + slot
            if options.get("layout") == "ragged":
                some = slice(wanted["t_offsets"][at], wanted["t_offsets"][at] + n)
                found = wanted["t_values"][some], wanted["t_scores"][some] if scored else scores[:n]
            else:
                found = (
                    wanted["t_ids"][window, slot, :n],
                    wanted["t_scores"][window, slot, :n] if scored else scores[:n],
                )
                assert (wanted["t_ids"][window, slot, n:] == -1).all()
                assert not scored or (wanted["t_scores"][window, slot, n:] == 0).all()
            assert found[0].tolist() == ids[:n].tolist()
            assert found[1].tolist() == scores[:n].tolist()


def test_every_half_is_read_as_it_is(tmp_path: Path) -> None:
    halves = np.arange(1 << 16, dtype=np.uint16).view(np.float16)
    halves = halves[np.isfinite(halves)]
    track = cl.TrackOptions(parameters={"ids": "u2", "scores": "f2"})
    build = cl.create_build(tmp_path / "ds", cl.BuildOptions(tracks={"t": track}))
    with build.shard(0) as shard:
        shard.add_document([1] * 9, {"t": [(0, 9, (np.arange(len(halves)), halves))]})
    cl.finalize(tmp_path / "ds")
    view = make_view("x", cl.open_dataset(tmp_path / "ds"), 0, 0, 1, 8)
    layout = decide_layout([view], 8, Outputs(), {"t": ConceptOptions()})
    found = BatchReader(None, [view], layout).read(*[np.zeros(1, np.uint64)], picked=(np.zeros(1, np.int64),) * 2)
    np.testing.assert_array_equal(found["t_scores"][0, 0].view(np.uint32), halves.astype("f4").view(np.uint32))


def test_a_batch_has_scores_of_all_datasets_or_of_none(tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    views = []
    for name, parameters in (("a", {"ids": "u2"}), ("b", {"scores": "f2"})):
        build(tmp_path / name, parameters, rng)
        views.append(make_view(name, cl.open_dataset(tmp_path / name), 0, 0, 3, 8))
    with raises(ConfigError, "concepts.t", "dataset a has no scores of its concepts, but b has"):
        decide_layout(views, 8, Outputs(), {"t": ConceptOptions()})


@pytest.mark.parametrize("score", [np.nan, np.inf])
@pytest.mark.parametrize("kind", ["f2", "f4"])
def test_a_score_that_is_no_number_is_an_error(tmp_path: Path, kind: str, score: float) -> None:
    """When it is written, when it is read, and for verify."""
    parameters = {"scores": kind}
    build(tmp_path / "ds", parameters, np.random.default_rng(1))
    codec = ConceptsCodec(parameters)
    with raises(InputError, expected="a finite number for each"):
        codec.encode(([1], [score]))
    with pytest.raises(ValueError, match="no finite number"):
        codec.check(codec.encode(([1], [0]))[:4] + np.array([score], kind).tobytes())
    ds = cl.open_dataset(tmp_path / "ds", check_files=False)
    data, first = tmp_path / "ds" / "00000.t.data", next(r for r in ds.spans("t", 0, 60).records if len(r))
    data.write_bytes(data.read_bytes().replace(first[-codec.item + 4 :], np.array([score], kind).tobytes(), 1))
    assert "no finite number" in str(cl.verify(tmp_path / "ds", full=True)[0])
    view = make_view("x", cl.open_dataset(tmp_path / "ds", check_files=False), 0, 0, 6, 20)
    layout = decide_layout([view], 20, Outputs(), {"t": ConceptOptions()})
    said = rf"00000\.t\.data: found score {score} in the span of track t at token \d+ of the dataset, expected finite"
    plain, compiled = PlainReader(None, [view], layout), BatchReader(None, [view], layout)
    for reader, match in ((plain, "no finite number"), (compiled, said)):
        with pytest.raises(FormatError, match=match):
            reader.read(np.arange(6, dtype=np.uint64), picked=(np.zeros(6, np.int64), np.arange(6, dtype=np.uint64)))
