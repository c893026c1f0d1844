"""A dataset as packs, without a configuration."""

from pathlib import Path
from typing import Any

import conceptloader as cl
from conceptloader.blend import View
from conceptloader.blend.exclude import NOTHING, left_out
from conceptloader.blend.packing import Packing, Packs
from conceptloader.order.progress.spec import Member, PackingRule


def make_view(path: Path, packing: Packing, quarantine: Any = (), split: tuple[float, float] | None = None) -> View:
    dataset = cl.open_dataset(path)
    token_range = dataset.split(*split) if split else (0, dataset.num_tokens)
    packs = Packs(dataset, packing, token_range, quarantine)
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
        start=token_range[0], quarantine=quarantine, left_out=left_out(NOTHING, quarantine),
    )  # fmt: skip
