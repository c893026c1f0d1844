"""TRL's SFTTrainer over a SampleDataset: its losses, metrics and adapters (PEFT), with conceptloader's samples."""

from typing import Any

from conceptloader.base.packages import imported
from conceptloader.base.version import PAGES
from conceptloader.errors import ConfigError

from .data import ConceptTrainer, check_arguments

with imported("transformers_lm: trl", "pip install trl", "trl"):
    import datasets
    import trl

_STAND_IN = {"input_ids": [[0]], "labels": [[0]]}
_FIX = (
    "omit it: samples of conceptloader have their seq_len, and are packed and masked as they are built; see "
    f"{PAGES}/packing.md, and `conceptloader build --chat` for the loss mask"
)
# What prepares data, which are prepared here: the values that are right, which are the defaults.
_PREPARED: dict[str, tuple[Any, ...]] = {
    "packing": (False,),
    "packing_strategy": ("bfd",),
    "eval_packing": (None, False),
    "padding_free": (False,),
    "pad_to_multiple_of": (None,),
    "completion_only_loss": (None, False),
    "assistant_only_loss": (False,),
    "shuffle_dataset": (False,),
    "truncation_mode": ("keep_start",),
    "dataset_text_field": ("text",),
    "dataset_kwargs": (None,),
    "dataset_num_proc": (None,),
}


class _Unprepared(trl.SFTTrainer):
    """An SFTTrainer that takes data as they are. It wants a datasets.Dataset, and looks at its first row."""

    def __init__(self, *args: Any, train_dataset: Any = None, **kwargs: Any) -> None:
        self._given, self._stand_in = train_dataset, datasets.Dataset.from_dict(_STAND_IN)
        super().__init__(*args, train_dataset=self._stand_in, **kwargs)

    def _prepare_dataset(self, dataset: Any, *args: Any, **kwargs: Any) -> Any:
        return self._given if dataset is self._stand_in else dataset


class ConceptSFTTrainer(ConceptTrainer, _Unprepared):
    """A ConceptTrainer that is an SFTTrainer of TRL. Tokens, lengths, packs and masks are those of the SampleDataset.

    Its arguments are those of SFTTrainer, among them processing_class, the tokenizer, and those of ConceptTrainer.

    Raises:
        ConfigError: Also for options that would prepare the data.
        ResumeError: For a checkpoint of other data.
    """

    def __init__(self, model: Any, args: Any = None, **kwargs: Any) -> None:
        if kwargs.get("formatting_func") is not None:
            raise ConfigError("formatting_func", "a function", "data that are prepared", _FIX)
        if args is not None:
            config = getattr(getattr(kwargs.get("train_dataset"), "blend", None), "config", None)
            lengths = (None, trl.SFTConfig.max_length, getattr(config, "seq_len", None))
            prepared = {**_PREPARED, "max_length": lengths}
            check_arguments(args, {name: (known, _FIX) for name, known in prepared.items()}, "SFTConfig")
        super().__init__(model, args, **kwargs)

    def _check_dataset(self, dataset: Any, name: str) -> None:
        super()._check_dataset(dataset, name)
        if dataset.blend.config.outputs.position_ids == "off":
            raise ConfigError(
                "outputs.position_ids", "off", "positions, by which TRL counts tokens", "omit outputs.position_ids"
            )

    _total_train_tokens: int

    def compute_loss(self, model: Any, inputs: Any, *args: Any, **kwargs: Any) -> Any:
        """The SFTTrainer's own. Its count of tokens takes a batch with positions for one row: here it has several."""
        before, rows = self._total_train_tokens, len(inputs["input_ids"])
        found = super().compute_loss(model, inputs, *args, **kwargs)
        self._total_train_tokens = before + rows * (self._total_train_tokens - before)
        self._metrics["train" if self.model.training else "eval"]["num_tokens"] = [self._total_train_tokens]
        return found
