"""Adapter for Megatron-LM: pretrain_gpt.py as it is, or scripts of one's own on megatron-core.

`install` is what conceptloader.launch calls. A custom forward_step calls `concepts`. A script of one's own uses
`setup`, `train_valid_test_datasets_provider` and `get_batch`; one on megatron-core alone uses `MegatronData`.

Open data.py first: all that the other ways in are made of.
"""

from conceptloader.base.packages import public
from conceptloader.base.patching import Upstream

MEGATRON = Upstream(
    name="Megatron-LM",
    seen="core_v0.16.1 to core_v0.19.0, and main of 2026-08 (core 0.20)",
    otherwise="use one of these, another release of conceptloader, or its train_valid_test_datasets_provider and "
    "get_batch in a script of your own",
)

_NAMES = {
    "batches": "SplitIterator",
    "data": "MegatronData",
    "dataset": "ConceptDataset",
    "launch": "concepts get_batch install set_weights setup train_valid_test_datasets_provider",
}
__all__, __getattr__ = public(__name__, _NAMES, MEGATRON.known)
