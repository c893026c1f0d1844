"""Documents of a row that must not see each other, in models of transformers, which separate them in some cases only.

Masks do where they are made from position_ids: without a cache and an attention_mask, and not in every model. Flash
attention does where it is given the boundaries; by position_ids it does at one row a batch.
"""

import re
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, NoReturn

import torch
from transformers import PreTrainedModel, masking_utils
from transformers.integrations import flash_attention

from conceptloader.errors import ConfigError

# layer_types with a state that passes to later documents, or with keys of several tokens, perhaps of two documents.
_RECURRENT = re.compile("linear|conv|hybrid|mamba|recurrent|compress")


class Documents:
    """Gives a model the boundaries of documents, and looks whether its attention has used them.

    Args:
        model: What is trained; position_ids are its own matter where nothing in it is a PreTrainedModel.
        replicas: GPUs of this process among which torch's DataParallel cuts each batch.
    """

    def __init__(self, model: Any, replicas: int) -> None:
        self.model = next((one for one in model.modules() if isinstance(one, PreTrainedModel)), None)
        config = None if self.model is None else self.model.config.get_text_config(decoder=True)
        self._attention = str(getattr(config, "_attn_implementation", None))
        self._flash, self._config = "flash" in self._attention, config
        recurrent = _RECURRENT.search(" ".join(getattr(config, "layer_types", None) or ()))
        prompts = getattr(getattr(model, "active_peft_config", None), "is_prompt_learning", False)  # drops position_ids
        self._never = bool(recurrent or prompts or (self._flash and replicas > 1))
        self._several = self._apart = False
        self._masks, self._attend = masking_utils.find_packed_sequence_indices, flash_attention._flash_attention_forward

    def inputs(self, batch: dict[str, Any]) -> dict[str, Any]:
        """The batch that the model gets next."""
        positions: Any = batch.get("position_ids")
        self._several = self.model is not None and positions is not None and bool((positions[:, 1:] == 0).any())
        if self._several and self._never:
            self._refuse()
        if not (self._several and self._flash):
            return batch
        begins = torch.eq(positions, 0)
        begins[:, 0] = True
        starts = begins.flatten().nonzero().flatten()
        bounds = torch.cat([starts, starts.new_tensor([begins.numel()])])
        lengths = {f"max_length_{side}": int(bounds.diff().max()) for side in "qk"}
        return {**batch, **{f"cu_seq_lens_{side}": bounds.int() for side in "qk"}, **lengths}

    @contextmanager
    def watched(self) -> Iterator[None]:
        """Around the forward of that batch: raises ConfigError unless its documents were separated."""
        if not self._several:
            yield
            return
        self._apart = False
        masking_utils.find_packed_sequence_indices = self._find
        flash_attention._flash_attention_forward = self._forward
        try:
            yield
        finally:
            masking_utils.find_packed_sequence_indices = self._masks
            flash_attention._flash_attention_forward = self._attend
        if not self._apart:
            self._refuse()

    def _find(self, position_ids: Any) -> Any:
        found = self._masks(position_ids)
        self._apart |= found is not None and not self._flash
        return found

    def _forward(self, query: Any, key: Any, value: Any, attention_mask: Any, *args: Any, **kwargs: Any) -> Any:
        if attention_mask is not None or kwargs.get("cu_seq_lens_q") is None:
            self._refuse()
        self._apart = True
        return self._attend(query, key, value, attention_mask, *args, **kwargs)

    def _refuse(self) -> NoReturn:
        cached = getattr(self._config, "use_cache", None)
        raise ConfigError(
            "position_ids",
            f"documents of a pack, or position_ids: document, in a {type(self.model).__name__} with "
            f"attn_implementation={self._attention}, use_cache={cached}: they would see each other",
            "a model whose attention separates them",
            "set use_cache=False, and attn_implementation sdpa, eager, flex_attention or, on one GPU a process, "
            "flash_attention_2; omit an attention_mask; train LoRA instead of prompts or prefixes. Layers with a "
            "recurrent state or compressed keys, and models whose masks ignore position_ids (OPT, Falcon, eager "
            "GPT-OSS), take neither packing nor position_ids: document",
        )
