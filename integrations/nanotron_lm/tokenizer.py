"""A tokenizer that need not exist: run_train.py loads one only to compare its length with the model's vocabulary."""

from collections.abc import Callable
from typing import Any


class StandIn:
    """Answers what run_train.py asks; for anything else (decoding, say) the real tokenizer is loaded.

    Its length is the model's vocabulary as it is now, also where tensor parallelism padded that.
    """

    pad_token: str | None = None
    eos_token: str | None = None
    eos_token_id: int | None = None
    padding_side: str = "left"

    def __init__(self, config: Any, load: Callable[[], Any]) -> None:
        self._config, self._load = config, load

    def __len__(self) -> int:
        return int(self._config.model.model_config.vocab_size)

    def __getattr__(self, name: str) -> Any:
        if name.startswith("_"):
            raise AttributeError(name)
        return getattr(self._load(), name)
