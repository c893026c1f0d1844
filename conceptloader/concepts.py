"""Concept tensors of a batch as a concept head takes them: by token, by span, on the device that the batch is on.

Shapes depend on the batch's layout alone, never on what was read: nothing here waits for a GPU, and CUDA graphs and
torch.compile can hold it. B samples, S = seq_len inputs, M = max_spans slots for the spans of a sample.
"""

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.nn.functional import pad

from conceptloader.errors import ConfigError
from conceptloader.kernels import records

__all__ = [
    "TrackTensors", "annotation_status", "span_concepts", "span_mask", "span_targets",
    "token_concepts", "token_values", "track",
]  # fmt: skip
NOT_ANNOTATED, NO_CONCEPT, ANNOTATED, TRUNCATED = 0, 1, 2, 3


class Concepts(NamedTuple):
    """ids: int64 [..., K], -1 where there is none.

    mask: bool [..., K], where there is one. cut: int64 [...], how many concepts there are beyond these K.
    """

    ids: Tensor
    mask: Tensor
    cut: Tensor


class TrackTensors(NamedTuple):
    """The tensors of one track of a batch, None for those that its layout does not have.

    Attributes:
        span_index: int32 [B, S], the span of each input; -1 for none, -2 for one beyond max_spans.
        num_spans: int32 [B].
        spans: int32 [B, M, 2], [start, end) in the inputs.
        flags: uint8 [B, M]; 1: begins before the inputs, 2: ends after them.
        ids: int64 [B, M, K], concepts, -1 beyond the count; layout padded.
        counts: int32 [B, M], of these, or of the numbers of each span.
        values: int64 [m], concepts of all spans; layout ragged. Of a track of numbers [B, M], in its type, or
            [B, M, K], 0 beyond the count, if spans have several.
        offsets: int64 [B * M + 1]; slot k has values[offsets[k]:offsets[k + 1]].
        scores: float32, in the shape of ids or values.
        records: For each sample the decoded records of its spans; layout records.
    """

    span_index: Tensor
    num_spans: Tensor
    spans: Tensor
    flags: Tensor
    ids: Tensor | None = None
    counts: Tensor | None = None
    values: Tensor | None = None
    offsets: Tensor | None = None
    scores: Tensor | None = None
    records: list[list[Any]] | None = None


def track(batch: Mapping[str, Any], name: str) -> TrackTensors:
    """The tensors of a track, by attributes that editors and type checkers know.

    Args:
        batch: Batch with the track.
        name: Track name.

    Returns:
        The batch's own tensors.

    Raises:
        ConfigError: If the batch has no such track.
    """
    found = {field: batch[f"{name}_{field}"] for field in TrackTensors._fields if f"{name}_{field}" in batch}
    if "span_index" not in found:
        known = [key.removesuffix("_span_index") for key in batch if key.endswith("_span_index")]
        fix = "name it under `tracks` in the configuration, or pass another"
        raise ConfigError(
            f"track {name!r}",
            "no such track in the batch",
            f"one of {', '.join(known)}" if known else "a batch with tracks",
            fix,
        )
    return TrackTensors(**found)


def span_concepts(batch: Mapping[str, Any], track: str, k: int, *, rank: Tensor | None = None) -> Concepts:
    """At most `k` concepts of each span.

    Of a span with more, the first k of its record are kept; with `rank` the k concepts of the lowest rank: with their
    frequencies as rank, the rarest.

    Args:
        batch: Batch with the track, padded or ragged.
        track: Track name.
        k: Most concepts of a span.
        rank: A number for each concept, [number of concepts]; by default the first k concepts of a record are kept.

    Returns:
        ids and mask [B, M, k], cut [B, M].

    Raises:
        ConfigError: If the batch has no such track.
    """
    if k < 1:
        raise ConfigError(
            "k",
            str(k),
            "at least 1 concept",
            "pass k=1 or more",
        )
    ids, counts = _padded(batch, track, k, everything=rank is not None)
    places = torch.arange(ids.shape[-1], device=ids.device)
    mask = places < counts[..., None]
    if rank is not None:
        ids, mask = _in_order(ids, mask, rank)
    ids, mask = _wide(ids, k, -1), _wide(mask, k, 0)
    return Concepts(ids.masked_fill(~mask, -1), mask, (counts - k).clamp(min=0))


def token_concepts(
    batch: Mapping[str, Any],
    tracks: str | Sequence[str],
    k: int,
    *,
    rank: Tensor | None = None,
    merged: Sequence[int] | None = None,
) -> Concepts:
    """At most `k` concepts of each token.

    These are `concept_ids` and `concept_mask` as guidelabs/steerling's concept head takes them for teacher forcing: one
    gather from the spans' concepts.

    Args:
        batch: Batch with the tracks, padded or ragged.
        tracks: One track or several.
        k: Most concepts of a token and track.
        rank: See `span_concepts`.
        merged: One numbering for the concepts of all tracks, the number that each track's first one has in it. Then `k`
            are kept of all tracks together, [B, S, k], in their sequence or those of the lowest rank, which is by that
            numbering.

    Returns:
        ids and mask [B, S, n * k], cut [B, S]; of n tracks one after the other.
    """
    found = []
    names = [tracks] if isinstance(tracks, str) else tracks
    if merged is not None and len(merged) != len(names):
        raise ConfigError(
            "merged",
            f"{len(merged)} numbers",
            f"a number for each of {len(names)} tracks",
            f"pass merged with {len(names)} numbers",
        )
    for track, base in zip(names, merged or [0] * len(names), strict=True):
        own = None if rank is None else rank[base:]
        spans, index = span_concepts(batch, track, k, rank=own), batch[f"{track}_span_index"]
        slot = index.clamp(min=0).long()
        some = index >= 0
        wide = slot[..., None].expand(*slot.shape, k)
        mask = spans.mask.gather(1, wide) & some[..., None]
        ids = (spans.ids + base).gather(1, wide).masked_fill(~mask, -1)
        found.append(Concepts(ids, mask, spans.cut.gather(1, slot) * some))
    if not found:
        raise ConfigError("tracks", "no track", "at least one track", "name a track under `tracks`")
    ids, mask = torch.cat([one.ids for one in found], -1), torch.cat([one.mask for one in found], -1)
    cut = torch.stack([one.cut for one in found]).sum(0)
    if merged is None:
        return Concepts(ids, mask, cut)
    ids, kept = _in_order(ids, mask, rank)
    return Concepts(ids[..., :k], kept[..., :k], cut + (mask.sum(-1) - k).clamp(min=0))


def token_values(batch: Mapping[str, Any], track: str, *, missing: float) -> Tensor:
    """The number of the span that each input is in, or its numbers.

    In samples of a dataset without the track, which a batch does not distinguish, all inputs are of none. Weights of
    the loss are better named in `outputs.loss_weight`, which has a number of its own for these.

    Args:
        batch: Batch with the track.
        track: Name of a track of numbers.
        missing: The number of an input of no span.

    Returns:
        [B, S], dtype of the track; [B, S, K] if spans have several numbers, 0 beyond their count.
    """
    if f"{track}_values" not in batch or f"{track}_offsets" in batch:
        raise ConfigError(
            "track",
            repr(track),
            "a track of numbers that the batch has",
            "name it under `tracks`, or pass another track",
        )
    index, values = batch[f"{track}_span_index"], batch[f"{track}_values"]
    rows = torch.arange(len(index), device=index.device)[:, None]
    expanded: Tensor = values[rows, index.clamp(min=0).long()]
    some = (index >= 0).view(*index.shape, *[1] * (expanded.ndim - index.ndim))
    return torch.where(some, expanded, torch.full_like(expanded, missing))


def annotation_status(batch: Mapping[str, Any], track: str) -> Tensor:
    """Return per token whether it is annotated.

    A loss for "this concept is not here" belongs to NO_CONCEPT and ANNOTATED tokens only: the others are unknown.

    Args:
        batch: Batch with the track.
        track: Track name.

    Returns:
        uint8 [B, S]: NOT_ANNOTATED for a token of no span, NO_CONCEPT for one of a span without concepts, TRUNCATED for
        one of a span beyond max_spans, which `overflow: mark` distinguishes from NOT_ANNOTATED; else ANNOTATED.
    """
    index, counts = batch[f"{track}_span_index"], _counts(batch, track)
    known = (counts.gather(1, index.clamp(min=0).long()) > 0).to(torch.uint8) + NO_CONCEPT
    result: Tensor = known * (index >= 0) + (index == records.TRUNCATED).to(torch.uint8) * TRUNCATED
    return result


def span_mask(batch: Mapping[str, Any], track: str) -> Tensor:
    """Which slots hold a span.

    Args:
        batch: Batch with the track.
        track: Track name.

    Returns:
        bool [B, M].
    """
    slots = torch.arange(batch[f"{track}_spans"].shape[1], device=batch[f"{track}_num_spans"].device)
    mask: Tensor = slots < batch[f"{track}_num_spans"][:, None]
    return mask


def span_targets(batch: Mapping[str, Any], track: str, num_concepts: int, *, first_id: int = 0) -> Tensor:
    """1 for each concept `first_id`, `first_id` + 1, ... that a span has (multi-hot).

    Slots without a span are all 0: mask them by `span_mask`.

    Args:
        batch: Batch with the track.
        track: Track name.
        num_concepts: Length of the last dimension.
        first_id: Id of the first concept in it.

    Returns:
        float32 [B, M, num_concepts].
    """
    counts = _counts(batch, track)
    if f"{track}_ids" in batch:
        ids = batch[f"{track}_ids"].flatten(0, 1)
        slot = torch.arange(len(ids), device=ids.device)[:, None].expand_as(ids)
        some = torch.arange(ids.shape[-1], device=ids.device) < counts.flatten()[:, None]
    else:
        ids = batch[f"{track}_values"]
        slot = torch.searchsorted(batch[f"{track}_offsets"][1:], torch.arange(len(ids), device=ids.device), right=True)
        some = torch.ones_like(ids, dtype=torch.bool)
    ids = ids - first_id
    some = some & (ids >= 0) & (ids < num_concepts)
    targets = torch.zeros(counts.numel(), num_concepts + 1, device=ids.device)  # one more, for what is not wanted
    targets[slot, torch.where(some, ids, num_concepts)] = 1.0
    return targets[:, :num_concepts].view(*counts.shape, num_concepts)


def _counts(batch: Mapping[str, Any], track: str) -> Tensor:
    """int64 [B, M]: concepts of each slot."""
    if f"{track}_ids" in batch:
        counts: Tensor = batch[f"{track}_counts"]
        return counts.long()
    if f"{track}_offsets" not in batch:
        known = sorted(name.rpartition("_")[0] for name in batch if name.endswith(("_counts", "_offsets")))
        raise ConfigError(
            "track",
            f"{track!r}",
            f"one of the tracks in the batch: {known}",
            "name it under `tracks`, or pass another track",
        )
    offsets: Tensor = batch[f"{track}_offsets"]
    return (offsets[1:] - offsets[:-1]).view(batch[f"{track}_spans"].shape[:2])


def _padded(batch: Mapping[str, Any], track: str, k: int, *, everything: bool) -> tuple[Tensor, Tensor]:
    """(ids [B, M, n], counts [B, M]). n: at least the first k, or all that the layout has room for."""
    counts = _counts(batch, track)
    if f"{track}_ids" in batch:
        ids: Tensor = batch[f"{track}_ids"]
        return (ids if everything else ids[..., :k]), counts
    values, offsets = batch[f"{track}_values"], batch[f"{track}_offsets"]
    if everything:
        raise ConfigError(
            f"track {track!r}",
            "layout ragged, in which a span may have any number of concepts",
            "layout padded",
            f"set tracks.{track}.layout: padded",
        )
    places = offsets[:-1, None] + torch.arange(k, device=offsets.device)
    ids = pad(values, (0, 1), value=-1)[places.clamp(max=len(values))]
    return ids.view(*counts.shape, k), counts


def _in_order(ids: Tensor, mask: Tensor, rank: Tensor | None) -> tuple[Tensor, Tensor]:
    """Both with the masked-out entries last: by rank, or in the given order."""
    ranks = torch.zeros_like(ids) if rank is None else rank.to(ids.device)[ids.clamp(min=0)]
    order = ranks.double().masked_fill(~mask, torch.inf).argsort(dim=-1, stable=True)
    return ids.gather(-1, order), mask.gather(-1, order)


def _wide(tensor: Tensor, k: int, value: int) -> Tensor:
    """The last dimension truncated or padded to k."""
    return pad(tensor[..., :k], (0, max(0, k - tensor.shape[-1])), value=value)
