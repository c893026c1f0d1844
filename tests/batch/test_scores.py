"""Scores of concepts: what is no number, and datasets that have none."""

import numpy as np
import pytest

from conceptloader.config import ConceptOptions, Outputs
from conceptloader.errors import ConfigError, FormatError, InputError
from conceptloader.format.spec.codecs import ConceptsCodec
from conceptloader.loader.batch.open import decide_layout
from conceptloader.loader.batch.reader import BatchReader
from tests.batch.cases import make_view, read
from tests.corpora.small import written
from tests.raises import raises

ONE = {"t": ConceptOptions()}


def view_of(path, record, **parameters):
    """Two windows, with a span in the second one."""
    written(path, [(range(20), {"t": [(9, 12, record)]})], tracks={"t": {"parameters": parameters}})
    return make_view(path, 9, loader={"verify_files": False})


def test_a_batch_has_scores_of_all_datasets_or_of_none(tmp_path):
    views = [view_of(tmp_path / "a", [3], ids="u2"), view_of(tmp_path / "b", ([3], [0.5]), scores="f2")]
    with raises(ConfigError, "tracks.t", "no scores of its concepts in dataset a, but scores in b"):
        decide_layout(views, 9, Outputs(), ONE)


@pytest.mark.parametrize("score", [np.nan, np.inf])
@pytest.mark.parametrize("kind", ["f2", "f4"])
def test_a_score_that_is_no_number_is_an_error(tmp_path, kind, score):
    """When it is written, and when it is read."""
    codec, (good, bad) = ConceptsCodec({"scores": kind}), np.array([[0.5], [score]], kind)
    with raises(InputError, expected="a finite number for each"):
        codec.encode(([1], [score]))
    with pytest.raises(ValueError, match="no finite number"):
        codec.check(codec.encode(([1], good)).replace(good.tobytes(), bad.tobytes()))
    view = view_of(tmp_path / "ds", ([7, 3], [0.25, 0.5]), scores=kind)
    data = tmp_path / "ds" / "00000.t.data"
    data.write_bytes(data.read_bytes().replace(good.tobytes(), bad.tobytes()))
    reader = BatchReader(None, [view], decide_layout([view], 9, Outputs(), ONE))
    read(reader, 0)
    said = rf"00000\.t\.data: found score {score} in the span of track t at token 9 of the dataset, expected finite"
    with pytest.raises(FormatError, match=said):
        read(reader, 1)
