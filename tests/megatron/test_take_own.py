"""What `exclude` takes out alone has no influence on Megatron's samples, with any of its masks and resets."""

from pathlib import Path
from typing import Any

import pytest
import torch

from tests.corpora.twins import IDS, VOCAB, write_twins
from tests.megatron.stock import Tokenizer, data_of, dataset_config
from tests.megatron.test_samples import FLAGS

pytestmark = pytest.mark.usefixtures("one_process")
LENGTH = 24


class Eos0(Tokenizer):
    """The tokenizer of the twins."""

    vocab_size, eod = VOCAB, 0


@pytest.mark.parametrize("flags", [*FLAGS[::3], {"create_attention_mask": False}])
def test_samples_do_not_depend_on_what_is_taken_out(tmp_path: Path, flags: dict[str, bool]) -> None:
    def samples(path: Path, *exclude: Any) -> list[dict[str, torch.Tensor]]:
        config = {
            "datasets": {"web": {"path": str(path)}},
            "exclude": list(exclude),
            "tracks": {"concepts": {"max_spans": LENGTH, "max_concepts": 4}},
            "outputs": {"document_ids": True, "loss_weight": {"name": "topics", "inside": 0.5, "outside": 2}},
        }
        given = dataset_config(LENGTH, **{"tokenizer": Eos0(), **flags})
        train = data_of(config, given, [32, 0, 0]).datasets()[0]
        return [train[k] for k in range(32)]

    def same(one: Any, other: Any) -> bool:
        return all(torch.equal(a[key], b[key]) for a, b in zip(one, other, strict=True) for key in {*a, *b})

    paths = write_twins(tmp_path, "documents")
    own = {"at": 8, "ids": IDS, "take": "own"}
    one, other = (samples(path, own) for path in paths)
    whole, changed = (samples(path) for path in paths)
    assert {"tokens", "labels", "loss_mask", "loss_weight", "concepts_ids"} <= one[0].keys()
    assert same(one[8:], other[8:])
    assert same(one[:8], whole[:8])
    assert not same(whole[8:], changed[8:])
    assert sum(float(sample["loss_mask"].sum()) for sample in one[8:]) > 300
