"""What a manifest claims of its tracks takes no memory on its word alone, and cuts nothing."""

import numpy as np
import pytest

import conceptloader as cl
from conceptloader.errors import ConfigError, FormatError
from conceptloader.loader.batch.open import batch_layout, open_reader
from tests.corpora.small import written
from tests.hostile.test_attacks import edit
from tests.raises import raises

TOO_MANY = r"(spans|stream\.bin): found at least 2 spans of track concepts .* at most 1 as the mani"
TOO_LONG = r"index: found 3 concepts in record \d+ of track concepts, expected at most 2 as"
TOKENS, SPANS = 200, 50  # a span of 2 tokens every 4 tokens, with 1 to 3 concepts


@pytest.fixture(params=["dense", "spans"])
def path(tmp_path, request):
    spans = [(at, at + 2, [7] * (at % 3 + 1)) for at in range(0, TOKENS // 2, 4)]
    shard = [(range(TOKENS // 2), {"concepts": spans})]
    return written(tmp_path / "ds", shard, shard, tracks={"concepts": {"encoding": request.param}})


def blend(path, **options):
    config = {"seq_len": 100, "datasets": {"a": {"path": str(path)}}, "tracks": {"concepts": options}}
    return cl.open_blend(cl.load_config({**config, "order": "sequential"}))


@pytest.mark.parametrize(
    ("claim", "value", "shape", "limit", "said"),
    [
        ("max_spans", [1] * 21, "padded", {"max_spans": 20}, TOO_MANY),
        ("max_spans", [1] * 21, "ragged", {"max_spans": 20}, TOO_MANY),
        ("max_items", 2, "padded", {"max_concepts": 2}, TOO_LONG),
    ],
)
def test_a_claim_too_small_is_an_error_not_a_cut(path, claim, value, shape, limit, said):
    """Also with `overflow: truncate`, unless the limit is one that somebody asked for."""
    edit(path, "tracks", "concepts", claim, value=value)
    for overflow in ("error", "truncate"):
        reader = open_reader(blend(path, layout=shape, overflow=overflow))
        with pytest.raises(FormatError, match=said):
            reader.read(np.array([0], np.uint64))
    found = open_reader(blend(path, layout=shape, overflow="truncate", **limit)).read(np.array([0], np.uint64))
    if claim == "max_spans":
        assert found["concepts_num_spans"].tolist() == [20]
    else:
        assert found["concepts_counts"].shape == (1, 28)
        assert found["concepts_counts"].max() == 2


def sample_bytes(path):
    return batch_layout(blend(path)).carve(1).size


def test_a_claim_too_large_takes_no_memory(path):
    """Not more than the files can hold."""
    right = sample_bytes(path)
    edit(path, "tracks", "concepts", "max_spans", value=[1 << 20] * 21)
    edit(path, "tracks", "concepts", "max_items", value=1 << 26)
    data = sum(file.stat().st_size for file in path.iterdir())
    assert data < 10_000
    assert sample_bytes(path) < right + 100 * 2000


@pytest.mark.parametrize(
    ("codec", "parameters"), [("concepts", {"x": 1}), ("json", {"x": 1}), ("numpy", {}), ("numpy", {"dtype": "f3"})]
)
def test_unknown_parameters_of_a_codec_are_an_error(path, codec, parameters):
    edit(path, "tracks", "concepts", "codec", value=codec)
    edit(path, "tracks", "concepts", "parameters", value=parameters)
    where = f"{path / 'manifest.json'}: track 'concepts': codec {codec}"
    with raises(ConfigError, where, "parameters", fix="parameters"):
        cl.open_dataset(path).spans("concepts", 0, 4)
    with raises(ConfigError, where):
        cl.open_dataset(path).files.item("concepts")  # what reads in bulk asks for
