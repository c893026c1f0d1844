"""A loop of PyTorch, killed and resumed on other ranks: what these recorded is the plan."""

import json
import math
from typing import NamedTuple

import numpy as np
import pytest
import yaml

import conceptloader as cl
from conceptloader.testing import random_documents, write_dataset
from conceptloader.trace import locate_documents, open_run
from tests.corpora.blended import tokens_of
from tests.ranks.launch import Launch, launch
from tests.ranks.loop import digests, read_state
from tests.scale import scaled

pytestmark = [pytest.mark.slow, pytest.mark.timeout(600)]

GROUPS = (1, 2, 3, 4)
BATCH = 12
RAMP = ((0, BATCH), (BATCH * 10, 2 * BATCH), (BATCH * 40, BATCH))
RUNS = 5
SEQ_LEN = 24


class Start(NamedTuple):
    """A start of the run. kill: SIGKILL to all ranks, as when the power fails, or to one, whose launcher ends the
    others."""

    ranks: int
    micro: int
    kill: str = ""


CHAIN = [Start(2, 6, "all:4"), Start(3, 2, "2:13"), Start(1, 4)]


@pytest.fixture(scope="module")
def data(tmp_path_factory):
    folder = tmp_path_factory.mktemp("data")
    for k, name in enumerate(("books", "code")):
        write_dataset(folder / name, random_documents(60, seed=k, prefix=name), shards=3, encoding="spans")
    return folder


def configuration(data, seed, rng):
    """Two phases, the first one of books alone, and samples that are skipped; odd seeds have `loader.balance`."""
    reading = {"prefetch_batches": int(rng.integers(0, 6)), "num_threads": int(rng.integers(1, 4))}
    return {
        "seed": seed,
        "seq_len": SEQ_LEN,
        "datasets": {name: {"path": str(data / name)} for name in ("books", "code")},
        "phases": [{"at": 0, "weights": {"books": 2}}, {"at": 150, "weights": {"books": 1, "code": 5}}],
        "skip": [{"at": 90, "count": 31}],
        "tracks": {"concepts": {}},
        "outputs": {"document_ids": True},
        "loader": {**reading, "balance": bool(seed % 2)},
    }


def write(directory, config):
    directory.mkdir(exist_ok=True)
    (directory / "run.yaml").write_text(yaml.safe_dump(config))
    return directory


def train(directory, number, start, stop, save, **options):
    """A launch up to a step, -1: for ever."""
    one = Launch(
        config=str(directory / "run.yaml"), out=str(directory), number=number, ranks=start.ranks, micro=start.micro,
        accumulate=1, steps=stop, save_at=save, options={"batch": RAMP},
    )  # fmt: skip
    return launch(
        "tests.ranks.scripts", one, directory, function="loop.train", ranks=start.ranks, number=number, kill=start.kill,
        **options,
    )  # fmt: skip


def test_a_run_that_is_killed_and_resumed_trains_the_plan(tmp_path, data):
    directory = write(tmp_path / "run", configuration(data, 0, np.random.default_rng(0)))
    for number, start in enumerate(CHAIN):
        ended = train(directory, number, start, 30, 3)
        assert (ended.code == 0) == (not start.kill), ended.output
    check(directory, 30)
    starts, history = cl.adapters.RunLog(directory).starts, cl.adapters.RunLog(directory).history
    assert [one.dp_size for one in starts] == [start.ranks for start in CHAIN]
    assert [one.step for one in starts] == [0, 3, 12]
    assert len(final(directory)) < sum(len(lines) for _, lines in recorded(directory)), "some were made again"
    for line in final(directory):
        for slot, sample in enumerate(line["samples"]):
            assert history.places(sample) == [(line["step"], line["micro_batch"], line["dp_rank"], slot)]
    run = open_run(directory / "run.yaml", directory)
    places = locate_documents(run, ["code-7"], history.range_of(29)[1])
    assert min(one.sample for one in places) >= 150 - 31, "code is drawn from there on"


@pytest.mark.soak
@pytest.mark.parametrize("seed", range(RUNS))
def test_killed_at_random_moments(tmp_path, data, seed, tally):
    """Resumed with another number of processes each time."""
    rng = np.random.default_rng(seed)
    directory = write(tmp_path / "run", configuration(data, seed, rng))
    processes = kills = number = 0
    while kills < scaled(10, 50) // RUNS:
        seconds = float(rng.choice([rng.uniform(0, 0.2), rng.uniform(0, 1)]))
        ended = train(directory, number, random_start(rng), -1, int(rng.integers(1, 5)), kill_after=seconds)
        assert {*ended.codes} == {-9}, f"a rank failed by itself: {ended.output}"
        processes, kills, number = processes + len(ended.codes), kills + 1, number + 1
    stop = read_state(directory)["step"] + 5
    assert train(directory, number, random_start(rng), stop, 1).code == 0
    samples = check(directory, stop)
    tally("trainings killed", {"runs": 1, "kills": kills, "processes": processes, "samples": samples})


def random_start(rng):
    ranks = int(rng.choice(GROUPS))
    return Start(ranks, int(rng.choice([m for m in (1, 2, 3) if BATCH % (m * ranks) == 0])))


def recorded(directory):
    """(the step that it began with, what its ranks recorded) of each launch; no line that a kill cut off."""
    found = []
    for number, start in enumerate(cl.adapters.RunLog(directory).starts):
        texts = [path.read_text() for path in directory.glob(f"record.{number}.*")]
        found.append((start.step, [json.loads(line) for text in texts for line in text.split("\n")[:-1]]))
    return found


def final(directory):
    """What counts of it: of steps that no later launch made again."""
    launches = recorded(directory)
    stops = [min((step for step, _ in launches[k:]), default=math.inf) for k in range(1, len(launches) + 1)]
    return [line for (_, lines), stop in zip(launches, stops, strict=True) for line in lines if line["step"] < stop]


def check(directory, stop):
    """Every sample of the steps [0, stop) was trained once in the run as it ended; returns how many."""
    # The plan, from the configuration and the data alone.
    blend = cl.open_blend(cl.load_config(directory / "run.yaml"))

    def planned(sample):
        tokens = np.array(tokens_of(blend, sample))[None]
        batch = {"input_ids": tokens[:, :-1], "labels": tokens[:, 1:], "loss_mask": np.ones((1, tokens.shape[1] - 1))}
        return digests({"dataset_id": [blend.order.sample(sample)[0]], **batch})[0]

    for _, lines in recorded(directory):  # also of steps that were made again
        for line in lines:
            assert line["digests"] == [planned(sample) for sample in line["samples"]], line
    trained = {sample: line["step"] for line in final(directory) for sample in line["samples"]}
    assert sum(len(line["samples"]) for line in final(directory)) == len(trained), "a sample was trained twice"
    assert sorted(trained) == list(range(len(trained))), "a sample was lost"
    assert {*trained.values()} == set(range(stop))
    return len(trained)
