"""Random datasets as packs: what was put into them, token by token, and views of them."""

from pathlib import Path
from typing import Any

import numpy as np

import conceptloader as cl
from conceptloader.batch.layout import BatchLayout
from conceptloader.batch.open import decide_layout
from conceptloader.blend import ConceptOptions, Outputs, View
from conceptloader.blend.mask import QUARANTINED, Mask
from conceptloader.blend.packing import Packing, Packs
from conceptloader.order.progress.spec import Member, PackingRule
from tests.corpora.known import Recipe, Truth, build, join


def make_view(path: Path, packing: Packing, quarantine: Any = (), split: tuple[float, float] | None = None) -> View:
    dataset = cl.open_dataset(path)
    token_range = dataset.split(*split) if split else (0, dataset.num_tokens)
    mask = Mask.of(*np.array(quarantine, np.int64).reshape(-1, 2).T, QUARANTINED)
    packs = Packs(dataset, packing, token_range, mask)
    member = Member(
        dataset="x",
        seq_len=packing.seq_len,
        windows=len(packs),
        stream_fingerprint=dataset.stream_fingerprint,
        token_range=token_range,
        packing=PackingRule(bins=packing.bins, overflow=packing.overflow),
    )
    return View(
        name="x", dataset_id=3, dataset=dataset, member=member, tracks=tuple(dataset.tracks), packs=packs,
        start=token_range[0], mask=mask,
    )  # fmt: skip


def random_packs(path: Path, seed: int) -> tuple[View, Truth, BatchLayout]:
    """A dataset of two joined ones, or of one; every option drawn."""
    rng = np.random.default_rng(seed)

    def recipe(loss_field: bool) -> Recipe:
        return Recipe(
            shards=tuple(rng.integers(1, 9, int(rng.integers(1, 4))).tolist()),
            token_type=str(rng.choice(["u2", "u4"])),
            encodings={track: str(rng.choice(["dense", "spans"])) for track in ("concepts", "topics")},
            longest=int(rng.integers(2, 150)),
            longest_span=int(rng.integers(2, 30)),
            loss_field=loss_field,
            mode=str(rng.choice(["stream-with-metadata", "document"])) if not joined else "stream-with-metadata",
        )

    joined = bool(rng.integers(2))
    loss_field = bool(rng.integers(2))
    truths = [build(path / name, recipe(loss_field), rng) for name in "ab"[: 1 + joined]]
    truth = join(path / "ab", [path / "a", path / "b"], truths) if joined else truths[0]
    tokens = len(truth.tokens)
    low = int(rng.integers(0, tokens))
    shard = int(rng.integers(0, len(truth.shard_starts)))
    ends = [*truth.shard_starts[1:], tokens]
    quarantine = [[], [(low, min(low + 5, tokens))], [(truth.shard_starts[shard], ends[shard])]][int(rng.integers(3))]
    packing = Packing(
        seq_len=int(rng.integers(1, 60)),
        bins=int(rng.integers(2, 7)),
        overflow=rng.choice(["split", "split", "crop"]).item(),
    )
    quarantine = [(a, b) for a, b in quarantine if a < b]
    view = make_view(path / ("ab" if joined else "a"), packing, quarantine)
    outputs = Outputs(
        position_ids=rng.choice(["window", "document", "off"]).item(),
        document_ids=bool(rng.integers(2)),
        cu_seqlens=bool(rng.integers(2)),
        loss_mask_borders=bool(rng.integers(2)),
        eos_loss=bool(rng.integers(2)),
        ignore_index=-100 if seed % 2 else None,
    )
    small: dict[str, Any] = {"max_spans": 3, "max_concepts": 2}
    tracks = {
        track: ConceptOptions(
            layout=rng.choice(["padded", "ragged"]).item(),
            overflow=rng.choice(["truncate", "mark"]).item(),
            **(small if rng.random() < 0.3 else {}),
        )
        for track in ("concepts", "topics")
        if rng.random() < 0.8
    }
    return view, truth, decide_layout([view], packing.seq_len, outputs, tracks)
