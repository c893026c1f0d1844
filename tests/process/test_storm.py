"""A job starts: what each of 1,024 ranks asks of the file system that holds the data, counted rank by rank."""

import os
import sys
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import conceptloader as cl
from tests.corpora.small import written
from tests.scale import scaled

RANKS, DATASETS, SHARDS, TOKENS, FIRST = 1024, 4, 10, 1700, 4

_counts: Counter[str] | None = None
_folder = ""


def _audit(event: str, arguments: tuple[Any, ...]) -> None:
    if _counts is not None and event in ("open", "os.listdir", "os.scandir") and str(arguments[0]).startswith(_folder):
        _counts[f"{event} {arguments[0]}"] += 1


sys.addaudithook(_audit)  # stays for good; it counts within `operations` alone


@contextmanager
def operations(folder: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Counter[str]]:
    """Operations by path that look something up below a folder: files that are opened, names that are looked at,
    folders that are listed."""
    global _counts, _folder
    counts: Counter[str] = Counter()

    def counted(name: str) -> Any:
        plain = getattr(os, name)

        def call(path: Any, *args: Any, **kwargs: Any) -> Any:
            if not isinstance(path, int) and os.fspath(path).startswith(str(folder)):
                counts[f"{name} {path}"] += 1
            return plain(path, *args, **kwargs)

        return call

    with monkeypatch.context() as patch:
        for name in ("stat", "lstat", "access", "readlink"):
            patch.setattr(os, name, counted(name))
        _counts, _folder = counts, str(folder)
        try:
            yield counts
        finally:
            _counts = None


@pytest.fixture(scope="module")
def config(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    folder = tmp_path_factory.mktemp("storm")
    for name in range(DATASETS):
        written(folder / f"d{name}", *[[(range(TOKENS),)]] * SHARDS)
    datasets = {f"d{name}": {"path": str(folder / f"d{name}"), "weight": name + 1} for name in range(DATASETS)}
    return {"seq_len": 16, "datasets": datasets, "loader": {"num_threads": 1, "prefetch_batches": 0}}


def test_a_rank_opens_manifests_and_the_shards_that_it_reads(
    config: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = Path(config["datasets"]["d0"]["path"]).parent
    for rank in range(0, RANKS, scaled(64, 1)):
        with operations(folder, monkeypatch) as counts:
            loader = cl.make_dataloader(config, micro_batch_size=2, dp_rank=rank, dp_size=RANKS)
            for _, _batch in zip(range(FIRST), loader, strict=False):
                pass
        loader.close()
        shards: set[tuple[int, int]] = set()
        for step in range(FIRST):
            members, _, windows = loader.blend.order.sample_many(loader.plan.micro_batches(step, rank)[0])
            first = np.stack([windows * 16, windows * 16 + 16]) // TOKENS
            shards |= {(int(member), int(shard)) for row in first for member, shard in zip(members, row, strict=True)}
        opened = Counter(what.rsplit(" ")[-1] for what in counts.elements() if what.startswith("open"))
        manifests = {path for path in opened if path.endswith("manifest.json")}
        assert len(manifests) == DATASETS
        assert set(opened.values()) == {1}, "each file is opened once"
        files = len(opened) - len(manifests)
        assert files == len(shards), "of the shards that the rank reads first"
        # A file is opened without a look at it. What is looked at is the manifest, once for a shard that was opened,
        # whether the dataset was rebuilt; and for each dataset the manifest once more, and the directories above it,
        # for links.
        looks = Counter(what for what in counts.elements() if not what.startswith("open"))
        of_manifests = sum(count for what, count in looks.items() if what.endswith("manifest.json"))
        assert of_manifests == len(shards) + DATASETS, sorted(counts.items())
        assert looks.total() - of_manifests <= 3 * DATASETS, sorted(counts.items())
