"""The `nanotron:` section beside our own configuration: what only this adapter needs to know."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from conceptloader.blend.strict import Section, build
from conceptloader.errors import ConfigError

STOCK_KEYS = ("input_ids", "input_mask", "label_ids", "label_mask")


@dataclass(frozen=True, kw_only=True)
class NanotronOptions(Section):
    """consume: batch keys that the model takes beyond nanotron's own four, with the pipeline stage that uses each:
        "first" (where the embedding is), "last" (where the loss is) or a pipeline rank. There the key holds a tensor,
        elsewhere a TensorPointer. Stock models refuse extra keys, so none are sent by default.
    loss_per_dataset: log the language model's loss of each dataset, every step.
    allow_changed: what may differ from the past of the checkpoint when resuming, named as the refusal names it.

    Raises ConfigError that names the key.
    """

    consume: dict[str, str] = field(default_factory=dict)
    loss_per_dataset: bool = False
    allow_changed: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        super().__post_init__()
        for key, stage in self.consume.items():
            if key in STOCK_KEYS:
                raise ConfigError(f"consume.{key}: every model of nanotron gets this key; leave it out")
            if stage not in ("first", "last") and not stage.isdecimal():
                raise ConfigError(f"consume.{key}: found {stage!r}, expected first, last or a pipeline rank")

    @classmethod
    def parse(cls, section: Any, where: str) -> "NanotronOptions":
        """Options from the YAML section, None for the defaults; `where` is its path in messages."""
        if isinstance(section, Mapping) and isinstance(section.get("consume"), Mapping):
            stages = {key: str(v) if type(v) is int else v for key, v in section["consume"].items()}
            section = {**section, "consume": stages}
        try:
            options: NanotronOptions = build(cls, {} if section is None else section, "")
        except ConfigError as error:
            raise ConfigError(f"{where}.{error}") from error
        return options
