"""Adapter for Megatron-LM: pretrain_gpt.py as it is, or custom scripts on megatron-core.

`install` is what conceptloader.launch calls, or a script that is started without it; a custom forward_step calls
`concepts`. A script on megatron-core alone uses `MegatronData`, which the other two are made of.

Open launch.py first: what is patched, and what each patch calls; then data.py.
"""

from conceptloader.base.packages import public
from conceptloader.base.patching import Upstream

MEGATRON = Upstream(
    name="Megatron-LM",
    seen="core_v0.16.1 to core_v0.19.0, and main of 2026-08 (core 0.20)",
    otherwise="use one of these, another release of conceptloader, or its MegatronData in a script of your own",
)

_NAMES = {
    "batches": "SplitIterator",
    "data": "MegatronData",
    "dataset": "ConceptDataset",
    "launch": "add_losses concepts install set_weights",
}
__all__, __getattr__ = public(__name__, _NAMES, MEGATRON.known)
