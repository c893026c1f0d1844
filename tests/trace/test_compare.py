"""The steps that another configuration changes, against a comparison of all batches of both."""

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
from conceptloader.blend import open_blend
from conceptloader.order.progress.runlog import History
from conceptloader.trace import Run, differing_steps
from tests.batch.compare import plain_reader
from tests.oracle.corpora import STREAMS, write_all
from tests.oracle.samples import Oracle
from tests.oracle.test_oracle import configurations, exclusions
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
    ways = ["exclude", "exclude", "quarantine", "outputs", "data", "tracks", "order"]
    for way in draw(st.lists(st.sampled_from(ways), min_size=1, max_size=2)):
        name = draw(st.sampled_from(sorted(paths)))
        if way == "exclude":
            other["exclude"] = draw(exclusions(folder, paths))
        elif way == "quarantine":
            kept = [one for one in config["quarantine"] if draw(st.booleans())]
            other["quarantine"] = [*kept, {"dataset": name, "tokens": [draw(st.integers(0, 4)), 5]}]
        elif way == "outputs":
            other["outputs"]["mask_document_boundaries"] ^= True
        elif way == "data" and paths[name] in STREAMS and "split" not in config["datasets"][name]:
            swaps = {"plain": "more", "more": "plain", "whole": "plain", "joined": "more"}
            other["datasets"][name]["path"] = str(folder / swaps.get(paths[name], paths[name]))
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
        other["quarantine"] = other["exclude"] = []
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
        shape = np.maximum(value.shape, two[key].shape)
        for x in pair:
            # Datasets with more spans in a window have more room for them, which is padded.
            blank = -1 if key.endswith("_ids") else x.flat[-1] if key.endswith("_offsets") else 0
            padded.append(np.full(shape, blank, x.dtype))
            padded[-1][tuple(map(slice, x.shape))] = x
        if padded[-2].tobytes() != padded[-1].tobytes():
            return False
    return True


@pytest.mark.timeout(7200 if SOAK else 600)
@settings(
    max_examples=scaled(60, 5_000),
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
    except cl.ConfigError:  # what is drawn does not always fit the datasets
        return
    history = History(data.draw(histories(config["seq_len"]), "starts"))
    run, other = (Run(blend=blend, history=history) for blend in blends)
    count = min(MOST, *sizes) if config["order"] == "sequential" else MOST
    stop = 0
    while max(history.range_of(k)[1] for k in range(stop + 1)) <= count:
        stop += 1
    if stop:
        assert list(differing_steps(run, other, stop)) == brute_force(run, other, stop)
