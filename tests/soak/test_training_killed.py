"""Training killed at random moments, resumed with another number of processes each time: it trains what was planned."""

import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import yaml

import conceptloader as cl
from conceptloader.order.schedule import BatchSchedule
from conceptloader.testing import random_documents, write_dataset
from conceptloader.trace import audit, open_run, read_record
from conceptloader.trace.record import checksums
from tests.conftest import Tally
from tests.corpora.blended import tokens_of
from tests.scale import scaled
from tests.soak.training import Launch, end, read_state, start

GROUPS = (1, 2, 3, 4)
BATCH = 12
RUNS = 5
SEQ_LEN = 24


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("data")
    for k, name in enumerate(("books", "code")):
        write_dataset(folder / name, random_documents(60, seed=k, prefix=name), shards=3, encoding="spans")
    config = configuration(folder, 0, np.random.default_rng(0))
    with cl.make_dataloader(config, micro_batch_size=1) as loader:  # compile before the ranks are forked
        next(iter(loader))
    return folder


def configuration(data: Path, seed: int, rng: np.random.Generator) -> dict[str, Any]:
    return {
        "seed": seed,
        "seq_len": SEQ_LEN,
        "datasets": {name: {"path": str(data / name)} for name in ("books", "code")},
        "phases": [
            {"start": 0, "weights": {"books": 2, "code": 1}},
            {"start": 150, "weights": {"books": 1, "code": 5}},
        ],
        "skip": [{"at": 90, "count": 31}],
        "tracks": {"concepts": {}},
        "loader": {
            "prefetch_batches": int(rng.integers(0, 6)),
            "num_threads": int(rng.integers(1, 4)),
        },
    }


def launch(number: int, config: dict[str, Any], directory: Path, rng: np.random.Generator) -> Launch:
    dp_size = int(rng.choice(GROUPS))
    micro_batch_size = int(rng.choice([m for m in (1, 2, 3) if BATCH % (m * dp_size) == 0]))
    ramp = ((0, BATCH), (BATCH * 10, 2 * BATCH), (BATCH * 40, BATCH))
    return Launch(
        number=number,
        config=config,
        directory=directory,
        dp_size=dp_size,
        micro_batch_size=micro_batch_size,
        schedule=BatchSchedule(ramp),
        save_every=int(rng.integers(1, 5)),
    )


@pytest.mark.soak
@pytest.mark.parametrize("seed", range(RUNS))
def test_the_record_equals_the_plan(tmp_path: Path, data: Path, seed: int, tally: Tally) -> None:
    rng = np.random.default_rng(seed)
    config = configuration(data, seed, rng)
    sizes = []
    kills = number = 0
    while kills < scaled(10, 50) // RUNS:
        this = launch(number, config, tmp_path, rng)
        processes = start(this)
        time.sleep(float(rng.choice([rng.uniform(0, 0.1), rng.uniform(0, 1)])))
        kills += bool(end(processes, rng))
        sizes.append(this.dp_size)
        number += 1
    saved = read_state(tmp_path)
    last = launch(number, config, tmp_path, rng)
    stop = (saved["step"] if saved else 0) + 5
    end(start(Launch(**{**vars(last), "stop_step": stop})))

    samples = check(tmp_path, config, stop)
    tally("trainings killed", {"runs": 1, "kills": kills, "processes": sum(sizes), "samples": samples})


def check(directory: Path, config: dict[str, Any], stop: int) -> int:
    """Every sample of the steps [0, stop) was trained once in the run as it ended; returns how many."""
    path = directory / "run.yaml"
    path.write_text(yaml.safe_dump(config))
    launches = read_record(directory / "record")
    trained: dict[int, tuple[int, int, str]] = {}
    for one in launches:
        for line in one.lines:
            if one.counts(line):
                for sample, dataset, checksum in zip(line.samples, line.datasets, line.checksums, strict=True):
                    assert sample not in trained, f"sample {sample} was trained twice"
                    trained[sample] = (line.step, dataset, checksum)
    assert sorted(trained) == list(range(len(trained))), "a sample was lost"
    assert {step for step, _, _ in trained.values()} == set(range(stop))
    # The plan, from the configuration and the data alone.
    blend = cl.open_blend(cl.load_config(config))
    for sample, k in enumerate(blend.order.sample_many(np.arange(len(trained)))[0].tolist()):
        tokens = np.array(tokens_of(blend, sample))[None]
        assert trained[sample][1:] == (k, checksums(tokens[:, :-1], tokens[:, 1:])[0]), f"sample {sample}"
    report = audit(open_run(path, directory), launches)
    assert report.difference is None
    assert report.steps == (0, stop)
    return len(trained)


def test_a_sample_of_another_position_is_noticed(tmp_path: Path, data: Path) -> None:
    """The check above can fail: the run is recorded with one seed and compared with another."""
    rng = np.random.default_rng(0)
    config = configuration(data, 0, rng)
    end(start(Launch(**{**vars(launch(0, config, tmp_path, rng)), "stop_step": 3})))
    assert check(tmp_path, config, 3) == 3 * BATCH
    with pytest.raises(AssertionError):
        check(tmp_path, {**config, "seed": 1}, 3)
