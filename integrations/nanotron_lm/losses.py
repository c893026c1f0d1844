"""The loss of each sample, from the losses per token that every stock model has at hand and averages away.

Micro batches reach the loss in the order in which the loader gave them, so the n-th call of a step belongs to the n-th
micro batch: nothing has to travel with the batch.
"""

import logging
import sys
from collections.abc import Mapping, Sequence
from typing import Any

import torch

from conceptloader.base.patching import Patch, Upstream
from conceptloader.errors import ConfigError
from conceptloader.loader.torch.agreement import GroupRanks
from conceptloader.loader.torch.losses import DatasetLosses
from conceptloader.run.training import TrainingRun

logger = logging.getLogger(__name__)

NANOTRON = Upstream(
    name="nanotron",
    seen="nanotron main at commit 2411b022",
    otherwise="use that version, or build_dataloader() in a script of your own",
)

_active: "StepLosses | None" = None


class StepLosses:
    """Losses of the samples of a step, on ranks that compute them, and what the run observes, on all ranks.

    names: of the datasets. group: of all ranks; None for one process. computes: whether this rank has losses.
    """

    def __init__(self, names: Sequence[str], group: Any, computes: bool) -> None:
        self.computes, self.means = computes, DatasetLosses(names, group)
        self._seen: list[tuple[torch.Tensor, torch.Tensor]] = []  # per micro batch: losses and weights of the samples

    def observe(self, loss: torch.Tensor, mask: torch.Tensor) -> None:
        """loss, mask [samples, tokens] of the next micro batch."""
        weights = mask.to(loss.dtype).sum(1)
        self._seen.append(((loss.detach() * mask).sum(1) / weights.clamp(min=1), weights))

    def end_step(self, run: TrainingRun, batches: Sequence[Mapping[str, torch.Tensor]]) -> None:
        """Give the run what it observes. batches: dataset_id and sample_index of each micro batch of this rank."""
        seen, self._seen = self._seen, []
        if self.computes and len(seen) != len(batches):
            raise ConfigError(
                "losses",
                f"those of {len(seen)} micro batches in a step of {len(batches)}",
                "those of each",
                "call conceptloader.integrations.nanotron_lm.losses.observe(loss, mask) in the model's loss",
            )
        for (losses, weights), batch in zip(seen, batches, strict=False):
            self.means.add(losses, {**batch, "loss_mask": weights})
        self.means.end_step(run, GroupRanks(), "cpu" if self.means.group is None else "cuda")


def log(what: str, prefix: str, values: Mapping[str, float]) -> None:
    """A line in nanotron's log, of any rank, and the values under `prefix` in its W&B."""
    text = " | ".join(f"{name}: {f'{one:.4g}' if isinstance(one, float) else one}" for name, one in values.items())
    logger.info("%s: %s", what, text, extra={"any_rank": True})
    wandb: Any = sys.modules.get("wandb")  # nanotron imports it where it is installed
    if wandb is not None and wandb.run is not None:
        wandb.log({prefix + name: value for name, value in values.items()}, commit=False)


def activate(recorder: StepLosses | None) -> None:
    """Let `observe` go to `recorder`, or nowhere, and have the stock models that nanotron has loaded call masked_mean.

    Raises ConfigError for a nanotron in which they average in another way.
    """
    global _active
    _active = recorder
    for model in ("llama", "qwen", "starcoder2"):
        patch = Patch(
            target=f"nanotron.models.{model}:masked_mean",
            by=masked_mean,  # a TorchScript function shows no parameters
            caller="Loss.forward",
            line="loss = masked_mean(loss, label_mask, dtype=torch.float)",
        )
        if hasattr(sys.modules.get(f"nanotron.models.{model}"), patch.attribute):
            NANOTRON.apply([patch])


def observe(loss: torch.Tensor, mask: torch.Tensor) -> None:
    """Losses per token [samples, tokens] and their mask, of one micro batch. For models that do not call masked_mean.

    Only the language model's loss has a gradient; the z-loss, which follows it, is passed over.
    """
    if _active is not None and loss.requires_grad:
        _active.observe(loss, mask)


def masked_mean(original: Any, loss: torch.Tensor, label_mask: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
    """In place of that of the stock models.

    The same, but 0 where nothing counts: an excluded micro batch would give 0 / 0 and end the run.
    """
    observe(loss, label_mask)
    return (loss * label_mask).sum(dtype=dtype) / label_mask.sum().clamp(min=1)
