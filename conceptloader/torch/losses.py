"""The loss of each dataset, in any trainer: sums on the device of the losses, reduced over ranks once a step."""

from collections.abc import Sequence
from typing import Any

import torch
import torch.distributed as dist


class DatasetLosses:
    """Mean losses of each dataset over all ranks.

    Args:
        names: Of the datasets, `blend.config.names`, of which a batch's dataset_id are positions.
        group: Of the processes that hold different samples, or other tokens of them; by default all of
            torch.distributed.
    """

    def __init__(self, names: Sequence[str], group: Any = None) -> None:
        self.names, self.group = list(names), group
        self._sums: torch.Tensor | None = None  # float64 [2, datasets]: of losses, and of weights

    def add(self, dataset_id: torch.Tensor, losses: torch.Tensor, weights: torch.Tensor | None = None) -> None:
        """Of a micro batch: dataset_id int [B]; losses [B], or [B, S] of each token; weights of these, as loss_mask."""
        losses = losses.detach().double()
        weights = torch.ones_like(losses) if weights is None else weights.to(losses)
        both = torch.stack([losses * weights, weights])
        both = both.flatten(2).sum(2) if losses.dim() > 1 else both
        if self._sums is None:
            self._sums = both.new_zeros(2, len(self.names))
        self._sums.index_add_(1, dataset_id.to(both.device, torch.int64), both)

    def finish(self, device: torch.device | str = "cpu") -> dict[str, float]:
        """Mean loss of each dataset since the last call, of those that had any. Collective over the group.

        Args:
            device: That its backend needs, where this rank may have seen nothing yet.
        """
        sums = torch.zeros(2, len(self.names), dtype=torch.float64, device=device) if self._sums is None else self._sums
        self._sums = None
        if dist.is_available() and dist.is_initialized():
            dist.all_reduce(sums, group=self.group)
        losses, weights = sums.tolist()
        return {name: loss / w for name, loss, w in zip(self.names, losses, weights, strict=True) if w}
