"""Statistics of packing a dataset, before training: `conceptloader inspect --packing`."""

import argparse
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from conceptloader.base.packages import need_add_on
from conceptloader.blend.packing import Packing, Packs
from conceptloader.cli.output import Output, save_picture, table
from conceptloader.format.read.dataset import Dataset, open_dataset

SAMPLED_BLOCKS = 400
_SEQ_LENS = 2048, 4096, 8192


def show_packing(arguments: argparse.Namespace, output: Output) -> None:
    with open_dataset(arguments.dataset, arguments.root) as dataset:
        choices = packing_stats(dataset, arguments.packing or _SEQ_LENS, arguments.bins)
    if arguments.plot is not None:
        draw_packing(choices, arguments.plot)
    output.result({"dataset": dataset.path, "packing": choices}, packing_lines(choices))


def packing_stats(dataset: Dataset, seq_lens: Sequence[int], bins: Iterable[int]) -> list[dict[str, Any]]:
    """Return for each choice, as JSON values: packs and their fill.

    Also shares of documents: longer than seq_len, not longer but split, cut by windows; the share of tokens that
    overflow `truncate` would drop.

    The shares are of the documents in SAMPLED_BLOCKS blocks, spread evenly; the rest is exact.
    Raises: ConfigError for a dataset without a document table, FormatError, ReadError.
    """
    choices = [(size, count) for size in seq_lens for count in sorted(bins)]
    return [_choice(dataset, Packing(seq_len=size, bins=count)) for size, count in choices]


def _choice(dataset: Dataset, packing: Packing) -> dict[str, Any]:
    pack_some = need_add_on("conceptloader.trace.ranges", "--packing").pack_some
    crop = replace(packing, overflow="crop")
    size, packs = packing.seq_len, Packs(dataset, packing, (0, dataset.num_tokens))
    blocks = -(-dataset.num_tokens // packing.block_tokens)
    documents = longer = split = windows = tokens = kept = 0
    for number in np.unique(np.linspace(0, max(0, blocks - 1), min(blocks, SAMPLED_BLOCKS)).astype(int)).tolist():
        count, pieces = packs.block(number)
        first = {piece.document: piece for piece in reversed(pieces)}
        if pieces and dataset.document_range(pieces[0].document)[0] < pieces[0].start:
            del first[pieces[0].document]  # counted in the block where it begins
        parts = Counter(pack_some(pieces, count, packing)["document"].tolist())
        documents += len(first)
        longer += sum(end - start > size for start, _, end, _ in first.values())
        split += sum(end - start <= size and parts[document] > 1 for start, _, end, document in first.values())
        windows += sum((end - 1) // size > start // size for start, _, end, _ in first.values())
        tokens += sum(end - start for start, _, end, _ in first.values())
        kept += int(pack_some([*first.values()], count, crop)["tokens"].sum())
    return {
        "seq_len": size,
        "bins": packing.bins,
        "packs": len(packs),
        "fill": dataset.num_tokens / max(1, len(packs) * size),
        "documents_longer": longer / max(1, documents),
        "documents_split": split / max(1, documents),
        "documents_cut_by_windows": windows / max(1, documents),
        "tokens_lost_by_truncation": 1 - kept / max(1, tokens),
        "documents_looked_at": documents,
    }


def packing_lines(found: Sequence[Mapping[str, Any]]) -> Iterator[str]:
    """A row for each choice."""
    shares = "documents_longer", "documents_split", "documents_cut_by_windows", "tokens_lost_by_truncation"
    rows = [
        (one["seq_len"], one["bins"], one["packs"], f"{one['fill']:.2%}", *(f"{one[name]:.3%}" for name in shares))
        for one in found
    ]
    yield from table(rows, ("seq_len", "bins", "packs", "fill", "longer", "split", "cut by windows", "truncated"))
    yield "of documents: longer than seq_len; not longer, but split; cut by windows. Of tokens: truncated"
    if any(one["documents_split"] > 0.1 for one in found):
        yield "many documents that fit are split: if they are just above half of seq_len, choose another seq_len"


def draw_packing(found: Sequence[Mapping[str, Any]], path: str) -> None:
    """Plot padding and split documents by bins, a line per seq_len; windows for comparison."""
    with need_add_on("conceptloader.viewer.plots", "--plot").new_figure(4) as figure:
        left, right = figure.subplots(1, 2)
        for k, size in enumerate(dict.fromkeys(one["seq_len"] for one in found)):
            rows = [one for one in found if one["seq_len"] == size]
            bins = [one["bins"] for one in rows]
            colour = f"C{k}"
            left.plot(
                bins, [100 * (1 - one["fill"]) for one in rows], color=colour, marker="o", label=f"seq_len {size:,}"
            )
            right.plot(bins, [100 * one["documents_split"] for one in rows], color=colour, marker="o")
            windows = [100 * one["documents_cut_by_windows"] for one in rows]
            right.plot(bins, windows, color=colour, linestyle=":", label=f"windows of {size:,}")
        for axes, title in ((left, "% of padding"), (right, "% of documents that fit, but are split")):
            axes.set_xscale("log", base=2)
            axes.set_yscale("symlog", linthresh=0.01)
            axes.set_xlabel("packing.bins")
            axes.set_title(title)
            axes.legend()
        save_picture(figure, path)
