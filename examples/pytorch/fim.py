"""Fill-in-the-middle (arXiv 2207.14255): documents are cut in three, and the model predicts the middle last.

`make_dataloader(config, batch_transform=FillInMiddle(...))`, with `outputs: {cu_seqlens: true, sample_seed: true}` in
the configuration. What is drawn depends on a sample's `sample_seed` and on the document's number in the sample alone: a
resumed run, and one on another number of ranks, cuts the same. A document that is cut becomes three tokens longer, and
what then no longer fits in the sample is dropped. Documents with a token without loss are not cut.
"""

from dataclasses import dataclass
from itertools import pairwise
from random import Random

import torch

NEEDED = {"input_ids", "labels", "loss_mask", "cu_seqlens", "sample_seed"}
IGNORED = -100  # the label where there is no loss


@dataclass(frozen=True)
class FillInMiddle:
    """prefix, suffix, middle: ids of the tokens in front of these parts; the embedding of the model needs their rows.
    eos: the id that stays at a document's end. rate: of documents that are cut. spm_rate: of these, those that get the
    order SPM, <prefix> <suffix> suffix <middle> prefix middle, and not PSM."""

    prefix: int
    suffix: int
    middle: int
    eos: int
    rate: float = 0.5
    spm_rate: float = 0.5

    def __call__(self, batch):
        """Another batch, with the same keys. Raises ValueError if it has tensors whose tokens would move away."""
        if missing := NEEDED - batch.keys():
            raise ValueError(f"fill-in-the-middle: no {min(missing)} in the batch: set outputs.{min(missing)}: true")
        apart = [k for k, v in batch.items() if k not in NEEDED | {"position_ids"} and getattr(v, "ndim", 0) > 1]
        if apart:
            raise ValueError(
                f"fill-in-the-middle: {apart[0]} belongs to tokens where they were: omit it from the batch"
            )
        rows, size = batch["input_ids"].shape
        edges, starts = batch["cu_seqlens"].tolist(), [0]
        tokens, labels, loss = (batch[name].clone() for name in ("input_ids", "labels", "loss_mask"))
        for row, seed in enumerate(batch["sample_seed"].tolist()):
            inner = [edge - row * size for edge in edges if row * size < edge < (row + 1) * size]
            stream = []
            kept = []
            for number, (begin, end) in enumerate(pairwise([0, *inner, size])):
                if 0 < len(stream) < size:
                    starts.append(row * size + len(stream))
                there = tokens[row, begin:end].tolist(), loss[row, begin:end].tolist()
                moved, trained = self._cut(*there, Random(seed << 20 | number))
                stream += moved
                kept += trained
            stream.append(int(labels[row, -1]))  # seen only if nothing was cut
            tokens[row], labels[row] = torch.tensor(stream[:size]), torch.tensor(stream[1 : size + 1])
            loss[row] = torch.tensor(kept[:size])
            starts.append((row + 1) * size)
        made = {**batch, "input_ids": tokens, "labels": labels.masked_fill(loss == 0, IGNORED), "loss_mask": loss}
        made["cu_seqlens"] = torch.tensor(starts, dtype=torch.int32)
        lengths = made["cu_seqlens"].diff().long()
        if "max_seqlen" in batch:
            made["max_seqlen"] = max(lengths.tolist(), default=0)
        positions = batch.get("position_ids")
        if positions is not None and not positions.flatten()[batch["cu_seqlens"][:-1].long()].any():  # by document
            begins = made["cu_seqlens"][:-1].long().repeat_interleave(lengths)
            made["position_ids"] = (torch.arange(rows * size) - begins).view(rows, size)
        return made

    def _cut(self, tokens, loss, random):
        """A document and its loss, maybe in the other order. The last loss is of the token that follows."""
        end = len(tokens) - (tokens[-1] == self.eos)
        if end < 2 or not all(loss[: end - 1]) or random.random() >= self.rate:
            return tokens, loss
        spm = random.random() < self.spm_rate
        first, last = sorted(int(random.random() * (end + 1)) for _ in range(2))
        before, within, after = tokens[:first], tokens[first:last], tokens[last:end]
        moved = [self.prefix, *before, self.suffix, *after, self.middle, *within]
        if spm:
            moved = [self.prefix, self.suffix, *after, self.middle, *before, *within]
        return moved + tokens[end:], [1.0] * (len(moved) - 1) + loss[end - 1 :]
