"""Flat files say nothing of their type: ids that contradict it are an error, all that may be right is adopted."""

import numpy as np
import pytest

from conceptloader.errors import InputError
from conceptloader.format.spec.manifest import Tokenizer
from conceptloader.ingest.adopt.adopt import adopt
from tests.raises import raises

WIDTHS = {"uint8": 1, "uint16": 2, "uint32": 4, "int64": 8}


def zipf(limit, count, seed=0):
    """Ids as text has them: the small ones are common."""
    ranks = np.random.default_rng(seed).zipf(1.2, count * 4)
    return ranks[ranks < limit][:count]


CORPORA = {
    "characters": (zipf(128, 20_000), "uint8"),
    "a small vocabulary": (zipf(250, 20_000), "uint16"),
    "gpt2": (zipf(50257, 200_000), "uint16"),
    "uniform": (np.random.default_rng(0).integers(0, 50_000, 20_000), "uint16"),
    "llama": (zipf(128_256, 200_000), "uint32"),
    "large": (np.random.default_rng(0).integers(0, 200_000, 20_000), "uint32"),
    "int64": (zipf(32_000, 50_000), "int64"),
    "constant": (np.full(10_000, 700), "uint16"),
    "two in turns": (np.tile([5, 9], 3000), "uint32"),
}


@pytest.mark.parametrize("name", CORPORA)
def test_the_type_they_were_written_with_is_taken_and_no_other(name, tmp_path):
    """Where the number of ids is known; else none that is more than twice as wide, or that cuts wide ids."""
    ids, dtype = CORPORA[name]
    ids.astype(dtype).tofile(tmp_path / "x.u16")
    known = Tokenizer(name="x", vocab_size=int(ids.max()) + 1, eos_id=None)
    for tokenizer in (None, known):
        adopt([tmp_path / "x.u16"], tmp_path / f"ds{tokenizer is None}", dtype=dtype, tokenizer=tokenizer)
        for other, width in WIDTHS.items():
            odd = tokenizer is None and {width, WIDTHS[dtype]} == {1, 2}
            if width != WIDTHS[dtype] and not odd and (tmp_path / "x.u16").stat().st_size % width == 0:
                with raises(InputError, "x.u16"):
                    adopt([tmp_path / "x.u16"], tmp_path / "other", dtype=other, tokenizer=tokenizer)


def test_a_vocabulary_that_is_named_may_be_large(tmp_path):
    ids = np.random.default_rng(0).integers(0, 3 << 20, 5000).astype("uint32")
    ids.tofile(tmp_path / "x.u32")
    with raises(InputError, "x.u32", f"ids up to {ids.max():,}, at least 1,048,576", fix="--tokenizer"):
        adopt([tmp_path / "x.u32"], tmp_path / "ds", dtype="uint32")
    named = Tokenizer(name="large", vocab_size=3 << 20, eos_id=None)
    assert adopt([tmp_path / "x.u32"], tmp_path / "ds", dtype="uint32", tokenizer=named).num_tokens == 5000
