"""Scores of concepts: halves, what is no number, and datasets that have none."""

import numpy as np
import pytest

import conceptloader as cl
from conceptloader.config import ConceptOptions, Outputs
from conceptloader.errors import ConfigError, FormatError, InputError
from conceptloader.format.spec.codecs import ConceptsCodec
from conceptloader.loader.batch.open import decide_layout
from conceptloader.loader.batch.reader import BatchReader
from tests.batch.cases import make_view, read
from tests.raises import raises


def build(path, parameters, rng):
    """Two shards of documents of 30 tokens with spans."""
    tracks = {"t": cl.writing.TrackOptions(parameters=parameters)}
    written = cl.writing.create_writer(path, cl.writing.BuildOptions(tracks=tracks, block_tokens=16), plan=[0, 1])
    for number in range(2):
        with written.shard(number) as shard:
            for _ in range(6):
                found, at = [], 0
                while at < 30:
                    n = int(rng.integers(0, 6))
                    ids = rng.integers(0, 1 << 16 if "ids" in parameters else 1 << 32, n)
                    scores = rng.normal(0, 10.0 ** rng.integers(-7, 4), n).astype(parameters.get("scores", "f4"))
                    end = min(30, at + int(rng.integers(1, 9)))
                    found.append((at, end, (ids, scores) if "scores" in parameters else ids))
                    at = end + int(rng.integers(0, 3))
                shard.add_document(rng.integers(0, 9, 30), {"t": found})
    cl.writing.finalize(path)


def test_a_batch_has_scores_of_all_datasets_or_of_none(tmp_path):
    rng = np.random.default_rng(0)
    views = []
    for name, parameters in (("a", {"ids": "u2"}), ("b", {"scores": "f2"})):
        build(tmp_path / name, parameters, rng)
        views.append(make_view(name, cl.open_dataset(tmp_path / name), 0, 0, 3, 8))
    with raises(ConfigError, "tracks.t", "no scores of its concepts in dataset a, but scores in b"):
        decide_layout(views, 8, Outputs(), {"t": ConceptOptions()})


@pytest.mark.parametrize("score", [np.nan, np.inf])
@pytest.mark.parametrize("kind", ["f2", "f4"])
def test_a_score_that_is_no_number_is_an_error(tmp_path, kind, score):
    """When it is written, and when it is read."""
    parameters = {"scores": kind}
    build(tmp_path / "ds", parameters, np.random.default_rng(1))
    codec = ConceptsCodec(parameters)
    with raises(InputError, expected="a finite number for each"):
        codec.encode(([1], [score]))
    with pytest.raises(ValueError, match="no finite number"):
        codec.check(codec.encode(([1], [0]))[:4] + np.array([score], kind).tobytes())
    ds = cl.open_dataset(tmp_path / "ds", verify_files=False)
    data, first = tmp_path / "ds" / "00000.t.data", next(r for r in ds.spans("t", 0, 60).records if len(r))
    data.write_bytes(data.read_bytes().replace(first[-codec.item + 4 :], np.array([score], kind).tobytes(), 1))
    view = make_view("x", cl.open_dataset(tmp_path / "ds", verify_files=False), 0, 0, 6, 20)
    layout = decide_layout([view], 20, Outputs(), {"t": ConceptOptions()})
    said = rf"00000\.t\.data: found score {score} in the span of track t at token \d+ of the dataset, expected finite"
    with pytest.raises(FormatError, match=said):
        read(BatchReader(None, [view], layout), *range(6))
