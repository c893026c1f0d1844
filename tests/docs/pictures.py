"""Pictures of the pages, drawn from what the product yields: python -m tests.docs.pictures writes them to docs/."""

import re
import tempfile
from itertools import groupby, pairwise
from pathlib import Path

import numpy as np
import yaml

import conceptloader as cl
from conceptloader.testing import RawDocument, random_documents, write_dataset

DOCS = Path(__file__).resolve().parents[2] / "docs"
# Colors that can be read on light and on dark pages.
STYLE = """  <style>
    rect { stroke: #5c6470; stroke-width: 0.6 } .a { fill: #a9b7ea } .b { fill: #f0b35c } .c { fill: #8ccb96 }
    .e { fill: none; stroke-dasharray: 3 } .l { stroke: #c62828; fill: none; stroke-width: 1.5 } text { fill: #767e88 }
    .n { fill: #222 }
  </style>"""


def svg(height, label, shapes):
    head = f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 760 {height}" font-family="sans-serif" font-size="13"'
    return "\n".join([f'{head} role="img"\n     aria-label="{label}">', STYLE, *shapes, "</svg>\n"])


def text(x, y, words, more=""):
    return f'  <text x="{x:g}" y="{y:g}"{more}>{words}</text>'


def rect(kind, x, y, width, height):
    return f'  <rect class="{kind}" x="{x:.5g}" y="{y}" width="{width:.5g}" height="{height}"/>'


def documents(lengths):
    return [RawDocument(id=f"doc-{k}", tokens=[1] * (n - 1) + [0], spans={}) for k, n in enumerate(lengths)]


def packs(folder):
    """The first windows of a dataset, and the packs of its first packing block."""
    seq_len, bins = 256, 8
    lengths = np.random.default_rng(3).geometric(1 / 90, 40).tolist()
    config = {
        "seq_len": seq_len,
        "order": "sequential",
        "outputs": {"document_ids": True, "position_ids": "document"},
        "datasets": {"web": {"path": write_dataset(f"{folder}/web", documents(lengths))}},
    }
    shapes = []
    for x, packing in ((10, {}), (400, {"packing": {"bins": bins}})):
        shapes.append(
            text(x, 18, f"packs of {seq_len} tokens, bins: {bins}" if packing else f"windows of {seq_len} tokens")
        )
        with cl.make_dataloader({**config, **packing}, micro_batch_size=bins) as loader:
            batch = next(iter(loader))
        for row, (ids, positions) in enumerate(zip(batch["document_ids"], batch["position_ids"], strict=True)):
            starts = [0, *(k for k in range(1, seq_len) if positions[k] == 0), seq_len]
            for start, stop in pairwise(starts):
                whole = ids[start] >= 0 and lengths[ids[start]] == stop - start
                kind = "a" if whole else "b" if ids[start] >= 0 else "e"
                shapes.append(rect(kind, x + 350 * start / seq_len, 28 + 22 * row, 350 * (stop - start) / seq_len, 16))
    for x, kind, words in ((10, "a", "a whole document"), (170, "b", "a part of a document"), (350, "e", "padding")):
        shapes += [rect(kind, x, 212, 22, 12), text(x + 30, 223, words)]
    return svg(
        232, "Documents in windows, which cut them, and in packs, which hold whole documents, then padding", shapes
    )


def balance(folder):
    """The attention of each rank in a step, by micro batch: as it comes, and with `loader.balance`."""
    ranks, step = 8, 32
    lengths = np.random.default_rng(5).lognormal(5.7, 1.4, 1200).astype(int).clip(2, 4096).tolist()
    config = {
        "seq_len": 4096,
        "packing": {"bins": 64},
        "outputs": {"cu_seqlens": True},
        "datasets": {"web": {"path": write_dataset(f"{folder}/web", documents(lengths))}},
    }
    shapes = []
    for x, balanced in ((10, False), (400, True)):
        config["loader"] = {"balance": balanced}
        work = []
        for rank in range(ranks):
            sizes = {"dp_rank": rank, "dp_size": ranks, "micro_batch_size": 1, "global_batch_size": step}
            with cl.make_dataloader(config, num_samples=step, **sizes) as loader:
                work.append([int((np.diff(batch["cu_seqlens"]).astype(int) ** 2).sum()) for batch in loader])
        mean = sum(map(sum, work)) / ranks
        slowest = max(map(sum, work)) / mean
        shapes.append(text(x, 18, f"balance: {str(balanced).lower()}. Slowest rank: {slowest:.2f} x mean"))
        for rank, micro_batches in enumerate(work):
            shapes.append(text(x, 41 + 20 * rank, f"rank {rank}"))
            left = x + 50
            for cost in micro_batches:
                shapes.append(rect("a", left, 30 + 20 * rank, 190 * cost / mean, 14))
                left += 190 * cost / mean
        shapes.append(f'  <path class="l" d="M{x + 240} 26V190"/>')
    shapes.append(
        text(10, 208, "attention within documents, by micro batch of each rank in one step; line: mean of the ranks")
    )
    return svg(216, "The attention of eight ranks in a step, by micro batch, and their mean", shapes)


def mixture(folder):
    """The share of each dataset in the run that docs/mixtures.md configures."""
    (phases,) = re.findall(r"```yaml\n(phases:.*?)```", (DOCS / "mixtures.md").read_text("utf-8"), re.S)
    names, every, stop = ("web", "code", "math"), 25_000, 6_000_000
    datasets = {name: {"path": write_dataset(f"{folder}/{name}", random_documents(20))} for name in names}
    order = cl.open_blend({"seq_len": 64, "datasets": datasets, **yaml.safe_load(phases)}).order
    counts = np.array([order.counts(at) for at in range(0, stop + 1, every)])
    shares = np.diff(counts, axis=0)[:, [order.names.index(name) for name in names]] / every
    shapes = []
    for kind, tops in reversed([*zip("abc", shares.cumsum(1).T, strict=True)]):  # the highest first, others over it
        line, done = "", 0
        for height, same in groupby(round(150 - 130 * top, 1) for top in tops):
            done += len([*same])
            line += f"V{height:g}H{40 + 700 * done / len(tops):.5g}"
        shapes.append(f'  <path class="{kind}" d="M40 150{line}V150z"/>')
    for name, x, y in (("web", 150, 100), ("code", 610, 90), ("math", 380, 38)):
        shapes.append(text(x, y, name, ' class="n"'))
    shapes += [text(6, 154, "0 %"), text(6, 26, "100"), text(40, 188, "samples that the trainer has consumed")]
    for at in (0, 2, 4, 5):
        shapes.append(text(40 + 700 * at / 6, 168, f"{at},000,000" if at else "0", ' text-anchor="middle"'))
    return svg(200, "The share of each dataset over the samples of a run with two phases and a ramp", shapes)


PICTURES = {"packs.svg": packs, "balance.svg": balance, "mixture.svg": mixture}

if __name__ == "__main__":
    for name, draw in PICTURES.items():
        with tempfile.TemporaryDirectory() as folder:
            (DOCS / name).write_text(draw(folder), "utf-8")
