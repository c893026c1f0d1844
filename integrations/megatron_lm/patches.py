"""Everything this adapter changes in Megatron at run time, for scripts that must stay as they are.

Each patch names the upstream line that it stands for and looks for it before anything is changed, so that a Megatron in
which the line has moved on is refused instead of trained with other data. Seen in core_v0.16.1 and in main (core 0.20).
"""

import inspect
from collections.abc import Callable
from dataclasses import dataclass
from importlib import import_module
from typing import Any

from conceptloader.errors import ConfigError

SEEN = "Megatron-LM core_v0.16.1 and main of 2026-08 (core 0.20)"


@dataclass(frozen=True, kw_only=True)
class Patch:
    """Replace attribute `name` (dotted: of a class) of `module`.

    caller: where upstream uses it, an attribute of `module`; line: what must stand there.
    """

    module: str
    name: str
    caller: str
    line: str

    def owner(self) -> tuple[Any, str]:
        """The object whose attribute is replaced, and the attribute's name."""
        owner: Any = import_module(self.module)
        *path, last = self.name.split(".")
        for part in path:
            owner = getattr(owner, part, None)
        return owner, last

    def check(self) -> None:
        """Raise ConfigError unless the upstream line is where it was."""
        owner, last = self.owner()
        source: Any = import_module(self.module)
        for part in self.caller.split("."):
            source = getattr(source, part, None)
        text = " ".join(inspect.getsource(source).split()) if source is not None else ""
        if not hasattr(owner, last) or self.line not in text:
            raise ConfigError(
                f"{self.module}: `{self.line}` was not found in {self.caller}: the adapter does not know this Megatron "
                f"(it knows {SEEN}); use another release of conceptloader, or its "
                "train_valid_test_datasets_provider and get_batch in a script of your own"
            )

    def apply(self, replacement: Callable[[Any], Any]) -> None:
        """Put `replacement(original)` in place."""
        owner, last = self.owner()
        setattr(owner, last, replacement(getattr(owner, last)))


# pretrain_gpt.py calls BlendedMegatronDatasetBuilder(...).build(): every split comes from here.
BUILD = Patch(
    module="megatron.core.datasets.blended_megatron_dataset_builder",
    name="BlendedMegatronDatasetBuilder.build",
    caller="BlendedMegatronDatasetBuilder.build",
    line="datasets = self._build_blended_dataset_splits()",
)
# The iterator that get_batch reads; ours keeps keys aside which get_batch would drop or slice.
ITERATOR = Patch(
    module="megatron.training.training",
    name="RerunDataIterator",
    caller="build_train_valid_test_data_iterators",
    line="return RerunDataIterator(iter(dataloader))",
)
# --dataloader-type cyclic: a list of torch.randperm on every rank.
CYCLIC = Patch(
    module="megatron.training.datasets.data_samplers",
    name="MegatronPretrainingRandomSampler",
    caller="build_pretraining_data_loader",
    line="batch_sampler = MegatronPretrainingRandomSampler( dataset, total_samples=len(dataset),",
)
# The one moment at which the checkpoint's arguments are known and nothing has been read yet.
CHECK = Patch(
    module="megatron.training.checkpointing",
    name="check_checkpoint_args",
    caller="load_checkpoint",
    line="check_checkpoint_args(checkpoint_args",
)

ALL = (BUILD, ITERATOR, CYCLIC, CHECK)


def apply_all(replacements: dict[Patch, Callable[[Any], Any]]) -> None:
    """Check every patch, then apply them: all or none."""
    for patch in replacements:
        patch.check()
    for patch, replacement in replacements.items():
        patch.apply(replacement)
