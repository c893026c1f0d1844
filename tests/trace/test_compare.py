"""The steps that another configuration changes, against a comparison of all batches of both."""

import dataclasses
import logging
from collections.abc import Callable
from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st

import conceptloader as cl
from conceptloader.batch.open import batch_layout
from conceptloader.batch.reader import BatchReader
from conceptloader.blend import open_blend
from conceptloader.order.progress.runlog import History, RunStart
from conceptloader.testing import random_documents, write_dataset
from conceptloader.trace import Run, differing_steps
from tests.batch.compare import plain_reader
from tests.oracle.corpora import STREAMS, write_all
from tests.oracle.samples import Oracle
from tests.oracle.test_oracle import TRACKS, configurations, exclusions
from tests.scale import SOAK, scaled
from tests.trace.walk import histories

MOST = 60  # samples


@pytest.fixture(scope="module")
def corpora(tmp_path_factory: pytest.TempPathFactory) -> Any:
    return lru_cache(None)(lambda seed: write_all(tmp_path_factory.mktemp(f"seed-{seed}-"), seed))


@st.composite
def changed(draw: st.DrawFn, folder: Path, config: dict[str, Any]) -> dict[str, Any]:
    """Another configuration, which differs from `config` in one thing or two."""
    other = {**config, "outputs": {**config["outputs"]}, "datasets": {k: {**v} for k, v in config["datasets"].items()}}
    shuffled, paths = config["order"] != "sequential", {k: Path(v["path"]).name for k, v in other["datasets"].items()}
    ways = ["exclude", "exclude", "never", "outputs", "data", "tracks", "order", "seq_len", "loss_weight"]
    for way in draw(st.lists(st.sampled_from(ways), min_size=1, max_size=2)):
        name = draw(st.sampled_from(sorted(paths)))
        if way == "exclude":
            never = [one for one in other["exclude"] if "at" not in one]
            other["exclude"] = [*never, *draw(exclusions(folder, paths))]
        elif way == "never":
            kept = [one for one in other["exclude"] if "at" in one or draw(st.booleans())]
            other["exclude"] = [*kept, {"dataset": name, "tokens": [draw(st.integers(0, 4)), 5]}]
        elif way == "outputs":
            other["outputs"]["mask_document_boundaries"] ^= True
        elif way == "data" and paths[name] in STREAMS and "split" not in config["datasets"][name]:
            swaps = {"plain": "more", "more": "plain", "whole": "plain", "joined": "more"}
            other["datasets"][name]["path"] = str(folder / swaps.get(paths[name], paths[name]))
        elif way == "seq_len":
            other["seq_len"] = config["seq_len"] + 1
        elif way == "loss_weight":
            other["datasets"][name]["loss_weight"] = 5
        elif way == "tracks":
            other["datasets"][name]["tracks"] = []
        elif way == "order" and shuffled:
            key = draw(st.sampled_from(["seed", "skip", "phases"]))
            other[key] = {
                "seed": config["seed"] + 1,
                "skip": [*config["skip"], {"at": draw(st.integers(0, MOST)), "count": 3}],
                "phases": [*config["phases"], {"start": 151 + draw(st.integers(0, 9)), "weights": {name: 2}}],
            }[key]
    if other["outputs"].get("loss_mask") is False:
        other["outputs"].pop("mask_document_boundaries")
        other["exclude"] = []
    return other


def brute_force(run: Run, other: Run, stop: int) -> list[int]:
    """All batches, sample by sample, by the plain reader."""
    readers = [plain_reader(one.blend) for one in (run, other)]
    return [
        step
        for step in range(stop)
        if any(
            not same(*(reader.read(np.array([t], np.uint64)) for reader in readers))
            for t in range(*run.steps.range_of(step))
        )
    ]


def same(one: dict[str, Any], two: dict[str, Any]) -> bool:
    one, two = ({k: v for k, v in batch.items() if k not in ("dataset_id", "sample_index")} for batch in (one, two))
    if one.keys() != two.keys():
        return False
    padded: list[Any] = []
    for key, value in one.items():
        if not isinstance(value, np.ndarray):
            if str(value) != str(two[key]):
                return False
            continue
        pair = value, two[key]
        if value.ndim != two[key].ndim or value.dtype != two[key].dtype:
            return False
        if value.shape != two[key].shape and not key.startswith(TRACKS):
            return False
        shape = np.maximum(value.shape, two[key].shape)
        for x in pair:
            # Datasets with more spans in a window have more room for them, which is padded.
            blank = -1 if key.endswith("_ids") else x.flat[-1] if key.endswith("_offsets") else 0
            padded.append(np.full(shape, blank, x.dtype))
            padded[-1][tuple(map(slice, x.shape))] = x
        if padded[-2].tobytes() != padded[-1].tobytes():
            return False
    return True


@pytest.mark.slow
@pytest.mark.timeout(7200 if SOAK else 600)
@settings(
    max_examples=scaled(30, 5_000),
    derandomize=not SOAK,
    database=None,
    phases=[Phase.generate],
    print_blob=True,
    deadline=None,
    suppress_health_check=list(HealthCheck),
)
@given(data=st.data())
def test_steps_are_those_of_all_batches(data: st.DataObject, corpora: Callable[[int], Path]) -> None:
    logging.getLogger("conceptloader").setLevel(logging.ERROR)
    folder = corpora(data.draw(st.integers(0, scaled(3, 300)), "corpora"))
    config = data.draw(configurations(folder), "config")
    changes = data.draw(changed(folder, config), "other")
    try:
        blends = open_blend(config), open_blend(changes)
        assert all(map(batch_layout, blends))
        sizes = [sum(Oracle(one).sizes.values()) for one in (config, changes)]
    except cl.errors.ConfigError:  # what is drawn does not always fit the datasets
        return
    history = History(data.draw(histories(config["seq_len"]), "starts"))
    run, other = (Run(blend=blend, history=history) for blend in blends)
    count = min(MOST, *sizes) if config["order"] == "sequential" else MOST
    stop = 0
    while max(history.range_of(k)[1] for k in range(stop + 1)) <= count:
        stop += 1
    if stop:
        assert list(differing_steps(run, other, stop)) == brute_force(run, other, stop)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """`one`, a dataset of three shards, and copies: `same`; `tokens`, `spans`, with one document that is another."""
    raw = random_documents(90, seed=1, mean_length=40)
    other = next(one for one in random_documents(900, seed=2) if len(one.tokens) == len(raw[40].tokens))
    tokens = [*raw[:40], dataclasses.replace(raw[40], tokens=other.tokens), *raw[41:]]
    spans = [*raw[:40], dataclasses.replace(raw[40], spans={}), *raw[41:]]
    for name, documents in (("one", raw), ("same", raw), ("tokens", tokens), ("spans", spans)):
        write_dataset(tmp_path / name, documents, shards=3)
    return tmp_path


@pytest.mark.parametrize("what", ["same", "tokens", "spans", "exclude", "weights"])
def test_little_is_read(folder: Path, what: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of a document that is another, excluded or annotated otherwise, the shard at most; of other weights each step."""
    entries = {name: {"path": str(folder / path)} for name, path in (("a", "one"), ("b", "same"))}
    config = {"seq_len": 16, "datasets": entries, "tracks": {"concepts": {}}}
    config["phases"] = [{"start": 0, "weights": {"a": 1, "b": 1}}]
    changes: dict[str, dict[str, Any]] = {
        "exclude": {"exclude": [{"at": 80, "dataset": "a", "ids": ["doc-40"]}]},
        "weights": {"phases": [*config["phases"], {"start": 201, "weights": {"a": 2, "b": 1}}]},
    }
    data = {"datasets": {**entries, "a": {"path": str(folder / what)}}}
    blends = [open_blend(one) for one in (config, {**config, **changes.get(what, data)})]
    history = History(
        [RunStart(step=0, consumed=0, batch=((0, 8),), micro_batch_size=8, dp_size=1, seq_len=16, spec="")]
    )
    run, other = (Run(blend=blend, history=history) for blend in blends)
    expected, read = brute_force(run, other, 45), []
    original = BatchReader.read

    def counting(reader: BatchReader, samples: Any, *more: Any, **named: Any) -> Any:
        read.extend(samples.tolist())
        return original(reader, samples, *more, **named)

    monkeypatch.setattr(BatchReader, "read", counting)
    assert list(differing_steps(run, other, 45)) == expected
    assert bool(expected) == (what != "same")
    most = {"same": 0, "exclude": 2 * 8 * len(expected), "weights": 2 * 8 * 20}.get(what, 2 * 360 // 2 // 2)
    assert len(read) <= most
    if what == "weights":
        assert min(expected) == 201 // 8
