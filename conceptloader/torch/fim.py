"""Fill-in-the-middle: documents of a batch as prefix, suffix, middle, chosen and cut by the seed and the sample alone.

As in arXiv 2207.14255: a document is cut at two places, and its parts stand as `<prefix> prefix <suffix> suffix
<middle> middle` (PSM), or as `<prefix> <suffix> suffix <middle> prefix middle` (SPM). Nothing is kept between batches:
with the same sample index comes the same result, from any number of ranks, after any restart.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
import torch

from conceptloader.base.hashing import derive_key
from conceptloader.errors import ConfigError

Ints = npt.NDArray[np.int64]
_ROW = ("input_ids", "labels", "loss_mask")
_BESIDE = ("document_ids", "position_ids")
_APART = ("_span_index", "_spans")  # of tracks, which say where tokens were


class Row(NamedTuple):
    """One sample: input_ids, labels int64 [S], loss_mask float32 [S], and where documents begin."""

    inputs: Ints
    labels: Ints
    loss: npt.NDArray[np.float32]
    borders: Ints  # where documents begin, with 0 and S
    source: Ints  # where the documents that are left began before


@dataclass(frozen=True, kw_only=True)
class FillInMiddle:
    """A function of a batch: `batch = fim(batch)`.

    Attributes:
        prefix: Id of the token in front of the prefix. The model's embedding needs a row for each of these ids.
        middle: Id of the token in front of the middle.
        suffix: Id of the token in front of the suffix.
        pad: Id that fills a sample which has become shorter; without loss.
        rate: Share of the documents that are permuted, in [0, 1].
        spm_rate: Share of these that get the order SPM, in [0, 1].
        seed: Decides, with the sample index, which documents are permuted and where they are cut.
        eos: Id that stays at the end of a document, if it is there.
        decode: Ids -> text, to cut between characters; without it documents are cut between tokens.
        encode: Text -> ids, given together with `decode`.
        no_prefix: Documents whose text begins with it stay.
        split: Id of a token between fragments, such as files of a repository; with it `rate` is of the documents that
            have one.
        fragment_rate: Share of a document's fragments that are permuted, in [0, 1]; given together with `split`.
        ignore_index: That of the outputs, if they have one.

    Raises:
        ConfigError: For rates outside [0, 1], and for what belongs together and is not.
    """

    prefix: int
    middle: int
    suffix: int
    pad: int
    rate: float = 0.5
    spm_rate: float = 0.5
    seed: int = 0
    eos: int | None = None
    decode: Callable[[Sequence[int]], str] | None = None
    encode: Callable[[str], Sequence[int]] | None = None
    no_prefix: str | None = None
    split: int | None = None
    fragment_rate: float | None = None
    ignore_index: int | None = None

    def __post_init__(self) -> None:
        for name in ("rate", "spm_rate", "fragment_rate"):
            value = getattr(self, name)
            if value is not None and not 0 <= value <= 1:
                raise ConfigError(
                    f"fim {name}",
                    str(value),
                    "a number from 0 to 1",
                    f"pass {name} in this range",
                )
        given = [name for name in ("decode", "encode", "no_prefix") if getattr(self, name) is not None]
        if given and given[:2] != ["decode", "encode"]:
            raise ConfigError(
                "fim",
                f"{' and '.join(given)} alone",
                "decode and encode together, and no_prefix only with both",
                f"pass decode and encode, or omit {' and '.join(given)}",
            )
        if (self.split is None) != (self.fragment_rate is None):
            raise ConfigError(
                "fim",
                "one of split and fragment_rate",
                "split and fragment_rate together, or neither",
                "pass split and fragment_rate, or omit both",
            )

    def __call__(self, batch: Mapping[str, Any]) -> dict[str, Any]:
        """The batch with other input_ids, labels, loss_mask, and with their boundaries.

        These are cu_seqlens, max_seqlen, document_ids and position_ids, if present. The tensors that were given stay as
        they are.

        Needs `outputs: {cu_seqlens: true}`, sample_index and loss_mask; tensors on the CPU. Documents with masked
        tokens (a loss mask) stay as they are; what no longer fits is truncated at the end of the sample.

        Raises ConfigError for a batch without these, or with concept tensors, which would not belong to their tokens.
        """
        missing = [name for name in ("cu_seqlens", "sample_index", "loss_mask") if name not in batch]
        row = () if missing else batch["loss_mask"].shape[1:]
        others = {name: value for name, value in batch.items() if name not in (*_ROW, *_BESIDE, "tokens")}
        aligned = [f for f, v in others.items() if row and (f.endswith(_APART) or getattr(v, "shape", ())[1:2] == row)]
        if missing or aligned or "tokens" in batch:
            found = f"without {missing[0]}" if missing else f"with {[*aligned, 'tokens'][0]}"
            raise ConfigError(
                "fim",
                f"a batch {found}",
                "outputs with cu_seqlens, sample_index and loss_mask, and neither concepts nor fields nor "
                "shared_labels",
                "set outputs: {cu_seqlens: true, sample_index: true, loss_mask: true}, and omit the others",
            )
        if self.ignore_index is None and (batch["labels"] < 0).any():
            raise ConfigError(
                "fim",
                f"labels of {int(batch['labels'].min())}, as outputs.ignore_index gives, but new places "
                "without loss would have tokens",
                "the same ignore_index in both",
                "pass FillInMiddle the same ignore_index as outputs.ignore_index",
            )
        size = batch["input_ids"].shape[1]
        arrays = {name: batch[name].numpy().copy() for name in (*_ROW, *_BESIDE) if name in batch}
        edges = batch["cu_seqlens"].numpy().astype(np.int64)
        sequences = [np.zeros(1, np.int64)]
        for k, sample in enumerate(batch["sample_index"].tolist()):
            mine = edges[(edges >= k * size) & (edges <= (k + 1) * size)] - k * size
            inputs, labels, loss = (arrays[name][k] for name in _ROW)
            row = self.row(sample, inputs, labels, loss, mine)
            lengths = np.diff(row.borders)
            if "document_ids" in arrays:
                arrays["document_ids"][k] = np.repeat(arrays["document_ids"][k][row.source], lengths)
            if "position_ids" in arrays and not arrays["position_ids"][k][mine[:-1]].any():
                arrays["position_ids"][k] = np.arange(size) - np.repeat(row.borders[:-1], lengths)
            for name, values in zip(_ROW, row, strict=False):
                arrays[name][k] = values
            if self.ignore_index is not None:
                arrays["labels"][k, row.loss == 0] = self.ignore_index
            sequences.append(row.borders[1:] + k * size)
        arrays["cu_seqlens"] = np.concatenate(sequences).astype(np.int32)
        longest = {"max_seqlen": int(np.diff(arrays["cu_seqlens"]).max(initial=0))} if "max_seqlen" in batch else {}
        return {**batch, **{name: torch.from_numpy(array) for name, array in arrays.items()}, **longest}

    def row(self, sample: int, inputs: Ints, labels: Ints, loss: npt.NDArray[np.float32], borders: Ints) -> Row:
        """One sample of that index. Its documents begin at the last argument, ascending positions with 0 and S."""
        size = len(inputs)
        tokens: list[Ints] = []
        others: list[tuple[Ints, npt.NDArray[np.float32]]] = []  # labels and loss of each document
        follows = []
        for number, (a, b) in enumerate(pairwise(borders.tolist())):
            end = b - int(inputs[b - 1] == self.eos)
            found = None
            if end - a > 1 and loss[a : end - 1].all():
                found = self._document((sample, number), inputs[a:end])
            follows.append(b < size and labels[b - 1] == inputs[b])
            if found is None:
                tokens.append(inputs[a:b])
                others.append((labels[a:b], loss[a:b]))
                continue
            whole = np.concatenate([found, inputs[end:b]])
            trained = np.ones(len(whole), np.float32)
            trained[len(found) - 1 : -1] = loss[end - 1 : b - 1]
            trained[-1] = loss[b - 1] if follows[-1] else 0  # what came behind its last token has another place now
            tokens.append(whole)
            others.append((np.append(whole[1:], labels[b - 1]), trained))
        for k in np.flatnonzero(follows).tolist():  # windows, where the label is the next document's first token
            others[k] = np.append(others[k][0][:-1], tokens[k + 1][0]), others[k][1]
        starts = np.cumsum([0, *map(len, tokens)])
        kept = starts[:-1] < size
        fill = max(0, size - int(starts[-1]))
        padding = np.full(fill, self.pad, np.int64)
        edges = np.append(starts[:-1][kept], size)
        return Row(
            np.concatenate([*tokens, padding])[:size],
            np.concatenate([*(found for found, _ in others), padding])[:size],
            np.concatenate([*(found for _, found in others), np.zeros(fill, np.float32)])[:size],
            edges,
            borders[:-1][kept],
        )

    def _document(self, key: tuple[int, int], tokens: Ints) -> Ints | None:
        """Another order of its tokens; None to leave it."""
        breaks = np.flatnonzero(tokens == self.split) if self.split is not None else tokens[:0]
        draws = (derive_key(self.seed, "fim", *key, n) for n in range(1 << 62))
        if not len(breaks):
            return self._permuted(tokens, self.rate, draws)
        if next(draws) >= self.rate * 2.0**64:
            return None
        parts = []
        for k, part in enumerate(np.split(tokens, breaks)):
            mark, part = part[: int(k > 0)], part[int(k > 0) :]
            found = self._permuted(part, self.fragment_rate or 0, draws) if len(part) else None
            parts += [mark, part if found is None else found]
        return np.concatenate(parts)

    def _permuted(self, tokens: Ints, rate: float, draws: Iterator[int]) -> Ints | None:
        chosen, way, low, high = (next(draws) for _ in range(4))
        if chosen >= rate * 2.0**64:
            return None
        parts: Sequence[Any]
        if self.decode is None or self.encode is None:
            first, last = sorted((low * (len(tokens) + 1) >> 64, high * (len(tokens) + 1) >> 64))
            parts = tokens[:first], tokens[first:last], tokens[last:]
        else:
            text = self.decode(tokens.tolist())
            if "\ufffd" in text or (self.no_prefix is not None and text.startswith(self.no_prefix)):
                return None  # half a character cannot be encoded again
            first, last = sorted((low * (len(text) + 1) >> 64, high * (len(text) + 1) >> 64))
            parts = [self.encode(part) if part else [] for part in (text[:first], text[first:last], text[last:])]
        before, within, behind = parts
        order = [[self.prefix, self.suffix], behind, [self.middle], before, within]
        if way >= self.spm_rate * 2.0**64:
            order = [[self.prefix], before, [self.suffix], behind, [self.middle], within]
        return np.concatenate([np.asarray(part, np.int64) for part in order])
