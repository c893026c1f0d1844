"""Means of losses over the labels that count: of a batch, of an evaluation, of each dataset; in any trainer."""

from collections.abc import Mapping, Sequence
from math import nan
from typing import Any

import numpy as np
import torch
import torch.distributed as dist

from conceptloader.errors import ConfigError
from conceptloader.loader.torch.agreement import grouped
from conceptloader.run.ranks import Ranks
from conceptloader.run.training import TrainingRun


def token_mean(
    losses: torch.Tensor, batch: Mapping[str, Any], total: torch.Tensor | float | None = None
) -> torch.Tensor:
    """Mean of losses over the labels that count; 0, with gradients of 0, where none does.

    Args:
        losses: float [B, S], of each label, as cross_entropy(..., reduction="none") has them; possibly times the
            batch's loss_weight. Where loss_mask is 0, also NaN and Inf are ignored.
        batch: Has `loss_mask` [B, S].
        total: What to divide by; by default the labels of this batch that count. For the mean over a step, pass the
            number of all labels that count in its micro batches, on all ranks, divided by the number of ranks over
            which gradients are averaged (DDP, FSDP).

    Returns:
        A scalar; float32 or more, as loss_mask is.

    Raises:
        ConfigError: If losses and loss_mask differ in shape.
    """
    mask = counted(losses, batch)
    count = mask.sum() if total is None else torch.as_tensor(total, device=mask.device)
    return (losses.masked_fill(mask == 0, 0) * mask).sum() / (count + (count == 0))


def counted(losses: torch.Tensor, batch: Mapping[str, Any]) -> torch.Tensor:
    """The batch's loss_mask, on the device of its losses."""
    if "loss_mask" not in batch or batch["loss_mask"].shape != losses.shape:
        raise ConfigError(
            "token_mean",
            f"losses of shape {list(losses.shape)}, loss_mask "
            + (f"of {list(batch['loss_mask'].shape)}" if "loss_mask" in batch else "missing"),
            "a loss and a loss_mask for each label: [B, S]",
            'compute losses with reduction="none", of logits.transpose(1, 2), and keep outputs.loss_mask',
        )
    return batch["loss_mask"].to(losses.device)  # type: ignore[no-any-return]


class TokenMean:
    """The mean loss of an evaluation: equal at any batch size and number of ranks, since it divides sums by counts.

    Args:
        group: See DatasetLosses.
    """

    def __init__(self, group: Any = None) -> None:
        self._losses = DatasetLosses([""], group)

    def add(self, losses: torch.Tensor, batch: Mapping[str, Any]) -> None:
        """Of a batch, which may have no rows: losses [B, S]; see token_mean."""
        self._losses.add(losses, {**batch, "dataset_id": torch.zeros(losses.shape[:1], dtype=torch.int64)})

    def finish(self, device: torch.device | str = "cpu") -> float:
        """The mean over all labels that count since the last call; NaN if there are none. Collective over the group.

        Args:
            device: See DatasetLosses.finish.
        """
        return self._losses.finish(device).get("", nan)


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
        self.samples: list[tuple[torch.Tensor, torch.Tensor]] | None = None  # of the step, with the same: [2, B]

    def add(self, losses: torch.Tensor, batch: Mapping[str, Any]) -> None:
        """Of a micro batch, once.

        Where ranks compute the same (tensor parallelism), one of them adds losses that are written by sample.

        Args:
            losses: float [B, S] of each label, or means [B] of samples.
            batch: Has `dataset_id` [B] and, as weights, `loss_mask` of the shape of `losses`; with
                `metrics: {losses: true}` also `sample_index` [B].

        Raises:
            ConfigError: If losses and loss_mask differ in shape.
        """
        weights = counted(losses, batch)
        losses = losses.detach().double()
        weights = weights.to(losses)
        both = torch.stack([losses.masked_fill(weights == 0, 0) * weights, weights])
        both = both.flatten(2).sum(2) if losses.dim() > 1 else both
        if self._sums is None:
            self._sums = both.new_zeros(2, len(self.names))
        self._sums.index_add_(1, batch["dataset_id"].to(both.device, torch.int64), both)
        if self.samples is not None:
            self.samples.append((batch["sample_index"], both))

    def end_step(self, run: TrainingRun, ranks: Ranks, device: torch.device | str = "cpu") -> None:
        """Give `run` what it observes of a step that has ended; ranks add nothing up where nobody learns from it."""
        due = run.mixing is not None and run.mixing.learns and run.mixing.due
        means = self.finish(device) if due else None
        numbers, sums = zip(*self.samples, strict=True) if self.samples else ((), ())
        both = torch.cat([torch.zeros(2, 0), *(one.cpu() for one in sums)], 1).numpy()
        self._sums = None
        self.samples = [] if run.blend.config.writes_losses else None
        if run.observes:
            samples = np.concatenate([np.zeros(0, np.int64), *(one.cpu().numpy() for one in numbers)])
            run.observe(means, ranks, (samples, *both))

    def finish(self, device: torch.device | str = "cpu") -> dict[str, float]:
        """Mean loss of each dataset since the last call, of those that had any. Collective over the group.

        Args:
            device: That its backend needs, where this rank may have seen nothing yet.
        """
        sums = torch.zeros(2, len(self.names), dtype=torch.float64, device=device) if self._sums is None else self._sums
        self._sums = None
        if grouped() is not None:
            dist.all_reduce(sums, group=self.group)
        losses, weights = sums.tolist()
        return {name: loss / w for name, loss, w in zip(self.names, losses, weights, strict=True) if w}
