"""Random cases: datasets, options and picks, all from one seed."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

import conceptloader as cl
from conceptloader.config import ConceptOptions, Outputs, View
from conceptloader.config.mask import ALWAYS, Mask
from conceptloader.format.read.dataset import Dataset
from conceptloader.format.spec.columnfile import TYPES
from conceptloader.loader.batch.layout import BatchLayout
from conceptloader.loader.batch.open import decide_layout
from conceptloader.order.progress.spec import Member
from tests.corpora.columns import add_column, random_items
from tests.corpora.known import Recipe, Truth, build, join


@dataclass
class Case:
    views: list[View]
    truths: list[Truth]
    layout: BatchLayout
    datasets: np.ndarray[Any, np.dtype[np.int64]]
    windows: np.ndarray[Any, np.dtype[np.uint64]]
    samples: np.ndarray[Any, np.dtype[np.uint64]]

    @property
    def picks(self) -> list[tuple[int, int]]:
        return list(zip(self.datasets.tolist(), self.windows.tolist(), strict=True))


def make_view(
    name: str, dataset: Dataset, dataset_id: int, start: int, count: int, seq_len: int, quarantine: Any = ()
) -> View:
    """`count` windows from token `start` on, or documents from document `start` on."""
    documents = dataset.mode == "document"
    stop = dataset.num_tokens if documents else start + count * seq_len + 1
    return View(
        name=name,
        dataset_id=dataset_id,
        dataset=dataset,
        member=Member(
            dataset=name,
            seq_len=None if documents else seq_len,
            windows=count,
            stream_fingerprint=dataset.stream_fingerprint,
            token_range=(0 if documents else start, stop),
        ),
        start=start,
        tracks=tuple(dataset.tracks),
        mask=Mask.of(*np.array(quarantine, np.int64).reshape(-1, 2).T, ALWAYS),
    )


def read(reader: Any, *windows: int, first: int = 0) -> Any:
    """A batch of windows of the first view, as the samples behind `first`."""
    picked = np.array(windows, np.uint64)
    return reader.read(picked + np.uint64(first), picked=(np.zeros(len(windows), np.int64), picked))


def random_case(path: Path, seed: int) -> Case:
    """Two datasets, one of them joined from two with other types; or documents."""
    rng = np.random.default_rng(seed)

    def recipe(**fixed: Any) -> Recipe:
        return Recipe(
            shards=tuple(rng.integers(1, 8, int(rng.integers(1, 4))).tolist()),
            token_type=str(rng.choice(["u2", "u4"])),
            encodings={track: str(rng.choice(["dense", "spans", "auto"])) for track in ("concepts", "topics")},
            longest=int(rng.integers(20, 120)),
            longest_span=int(rng.integers(2, 30)),
            **{"loss_field": False, **fixed},
        )

    mode = str(rng.choice(["stream-with-metadata", "stream-with-metadata", "document"]))
    loss_field, of_c = rng.integers(0, 2, 2).astype(bool).tolist()
    parts = [path / name for name in ("a", "b", "c")]
    truths = [build(p, recipe(mode=mode, loss_field=of_c if p.name == "c" else loss_field), rng) for p in parts]
    joined = join(path / "ab", parts[:2], truths[:2])
    datasets = [cl.open_dataset(path / "ab"), cl.open_dataset(parts[2])]
    known = [joined, truths[2]]
    seq_len = int(rng.integers(1, max(2, min(80, min(d.num_tokens for d in datasets) - 2))))
    views = []
    for k, dataset in enumerate(datasets):
        if mode == "document":
            start = int(rng.integers(0, dataset.num_documents))
            count = dataset.num_documents - start
        else:
            start = int(rng.integers(0, max(1, dataset.num_tokens - seq_len)))
            count = max(1, (dataset.num_tokens - start - 1) // seq_len)
        low = int(rng.integers(0, dataset.num_tokens))
        quarantine = [(low, low + 5)] if rng.random() < 0.4 else []
        views.append(make_view("xy"[k], dataset, 10 + k, start, count, seq_len, quarantine))
    needs_mask = mode == "document" or loss_field or of_c or any(len(view.mask.at) for view in views)
    masked = needs_mask or rng.random() < 0.7
    outputs = Outputs(
        position_ids=rng.choice(["window", "document", "off"]).item(),
        document_ids=bool(rng.integers(2)),
        cu_seqlens=bool(rng.integers(2)),
        mask_document_boundaries=masked and bool(rng.integers(2)),
        dataset_id=bool(rng.integers(2)),
        sample_index=bool(rng.integers(2)),
        loss_on_eos=not masked or bool(rng.integers(2)),
        shared_labels=bool(rng.integers(2)),
        loss_mask=masked,
    )
    if masked and not outputs.shared_labels and seed % 2:
        outputs = replace(outputs, ignore_index=-100)
    small: dict[str, Any] = {"max_spans": 3, "max_concepts": 2}
    outputs = replace(outputs, columns=random_columns([path / "ab", parts[2]], seed))
    tracks = {
        track: ConceptOptions(
            layout=rng.choice(["padded", "ragged"]).item(), overflow="truncate", **(small if rng.random() < 0.3 else {})
        )
        for track in ("concepts", "topics")
        if rng.random() < 0.8
    }
    layout = decide_layout(views, seq_len, outputs, tracks)
    size = int(rng.integers(0, 12))
    chosen = rng.integers(0, 2, size) if min(s.count for s in views) else np.full(size, int(views[0].count == 0))
    windows = np.array([rng.integers(0, views[k].count) for k in chosen.tolist()], np.uint64)
    return Case(views, known, layout, chosen, windows, rng.integers(0, 1 << 40, size).astype(np.uint64))


def random_columns(paths: Sequence[Path], seed: int) -> dict[str, Any]:
    """Columns of datasets, of which some lack some or all values; as outputs.columns."""
    rng, chosen = np.random.default_rng([seed, 49]), dict[str, Any]()
    for k in range(int(rng.integers(0, 4))):
        dtype, shape = str(rng.choice([*TYPES])), tuple(rng.integers(1, 4, rng.integers(0, 3)).tolist())
        for path in paths if rng.random() < 0.7 else paths[:1]:
            dataset = cl.open_dataset(path)
            missing = rng.random(dataset.num_tokens) < 0.3 if rng.random() < 0.5 else None
            without = [shard for shard in range(dataset.num_shards) if rng.random() < 0.2]
            add_column(path, f"column{k}", random_items(rng, dataset.num_tokens, dtype, shape), dtype, missing, without)
        chosen[f"column{k}"] = {
            "at": str(rng.choice(["inputs", "labels"])),
            "missing": int(rng.integers(0, 100)),
            "dtype": str(rng.choice(["widened", "stored"])),
        }
    return chosen
