"""Adapter for Megatron-LM: pretrain_gpt.py as it is, or scripts of one's own on megatron-core.

`install` is what conceptloader.launch calls. A custom forward_step calls `concepts`. A script of one's own uses
`setup`, `train_valid_test_datasets_provider` and `get_batch`; one on megatron-core alone uses `MegatronData`.

Open data.py first: all that the other ways in are made of.
"""

from typing import Any

from conceptloader.base.packages import public

_PUBLIC = {
    "ConceptDataset": "dataset",
    "MegatronData": "data",
    "SplitIterator": "batches",
    "concepts": "launch",
    "get_batch": "launch",
    "install": "launch",
    "set_weights": "launch",
    "setup": "launch",
    "train_valid_test_datasets_provider": "launch",
}

__all__ = sorted(_PUBLIC)


def __getattr__(name: str) -> Any:
    return public(__name__, _PUBLIC, name)
