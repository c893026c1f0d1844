"""`metrics: {losses: true}`: losses of samples next to the run log, as SQL has them; each value is computed again."""

import json
import logging
import os
from itertools import chain

import numpy as np
import pytest
import torch
from torch.nn.functional import cross_entropy

import conceptloader as cl
from conceptloader.errors import ConfigError
from conceptloader.trace import open_run, query
from tests.corpora.small import random_datasets
from tests.raises import raises

VOCABULARY, BATCH = 1000, 8
LOGITS = torch.randn(VOCABULARY, VOCABULARY, generator=torch.Generator().manual_seed(1))


@pytest.fixture
def config(tmp_path):
    datasets = random_datasets(tmp_path, ("books", "web"), weight=1)
    datasets["web"]["loss_weight"] = 0.5
    masked = {"at": 0, "ids": ["web-3", "books-5"], "take": "own"}
    return {"seq_len": 16, "datasets": datasets, "exclude": [masked], "metrics": {"losses": True}}


def losses_of(batch, scale):
    every = cross_entropy(LOGITS[batch["input_ids"]].transpose(1, 2), batch["labels"], reduction="none")
    return every * batch["loss_weight"] * scale


def make(config, **options):
    return cl.make_dataloader(config, **{"micro_batch_size": 2, "global_batch_size": BATCH, **options})


def train(config, folder, steps, scale=1, ranks=2, state=None):
    """A launch of all ranks, one after the other. scale: of its losses, by which launches differ."""
    saved = None
    for rank in range(ranks):
        loader = make(config, dp_rank=rank, dp_size=ranks)
        if state is not None:
            loader.load_state_dict(state)
        first = loader.steps or 0
        loader.log_start(folder, first)
        for number, batch in enumerate(loader, 1):
            loader.losses.add(losses_of(batch, scale), batch)
            if number % (BATCH // 2 // ranks) == 0:
                loader.observe_step()
                if loader.steps == first + steps:
                    break
        saved = loader.state_dict()
    return saved


def expected(config, steps, scale):
    """(step, sample) -> loss, tokens."""
    found = {}
    for batch in make({**config, "metrics": False}, micro_batch_size=BATCH, num_samples=steps.stop * BATCH):
        losses = losses_of(batch, scale) * batch["loss_mask"]
        for row, sample in enumerate(batch["sample_index"].tolist()):
            if sample // BATCH in steps:
                found[sample // BATCH, sample] = float(losses[row].double().sum()), float(batch["loss_mask"][row].sum())
    return found


def read(folder, steps):
    rows = query(open_run(log=folder), "select step, sample, loss, tokens from losses", steps=steps).to_pylist()
    found = {(row["step"], row["sample"]): (row["loss"], row["tokens"]) for row in rows}
    assert len(found) == len(rows)
    return found


def same(found, wanted):
    assert sorted(found) == sorted(wanted)
    assert np.array([found[key] for key in wanted]) == pytest.approx(np.array([*wanted.values()]), rel=1e-6)


def test_the_last_launch_counts_for_a_step(config, tmp_path):
    """On other ranks too; also for steps that it has not made again, which nobody has trained then."""
    state = train(config, tmp_path, 3)
    train(config, tmp_path, 5, scale=2, state=state)
    train(config, tmp_path, 2, scale=3, ranks=1, state=state)
    wanted = expected(config, range(3), 1) | expected(config, range(3, 5), 3)
    same(read(tmp_path, (0, 10)), wanted)
    same(read(tmp_path, (2, 4)), {key: value for key, value in wanted.items() if key[0] in (2, 3)})
    assert any(tokens < 16 for _, tokens in wanted.values())  # of excluded documents
    joined = "select count(*) as n from losses join samples using (step, sample, rank)"
    assert query(open_run(log=tmp_path), joined, steps=(0, 10))["n"].to_pylist() == [5 * BATCH]
    train(config, tmp_path, 1, scale=4)  # from the first step again, in the same second
    same(read(tmp_path, (0, 10)), expected(config, range(1), 4))


def test_a_row_that_a_kill_has_torn_is_skipped(config, tmp_path, caplog):
    train(config, tmp_path, 3)
    one, _ = (tmp_path / "conceptloader_losses").iterdir()
    whole = read(tmp_path, (0, 3))
    os.truncate(one, os.path.getsize(one) - 5)
    with caplog.at_level(logging.WARNING):
        torn = read(tmp_path, (0, 3))
    assert "last rows of 1 files are incomplete" in caplog.text
    assert len(whole) - len(torn) == 1
    same(torn, {key: whole[key] for key in torn})


def test_the_step_of_a_loop_that_begins_again_counts_once(config, tmp_path):
    loader = cl.TrainedLoader(config, micro_batch_size=4, global_batch_size=BATCH)
    loader.log_start(tmp_path, 0)
    loader.losses.add(losses_of(batch := next(iter(loader)), 5), batch)
    for number, batch in enumerate(loader, 1):
        loader.losses.add(losses_of(batch, 1), batch)
        if number % 2 == 0:
            loader.acknowledge()
            loader.observe_step()
        if number == 4:
            break
    same(read(tmp_path, (0, 9)), expected(config, range(2), 1))


def test_each_pass_of_a_sequential_order_has_its_steps(config, tmp_path):
    config |= {"order": "sequential", "split_documents": (0, 0.1), "exclude": []}
    config["datasets"] = {"web": {"path": config["datasets"]["web"]["path"]}}
    loader = make(config, micro_batch_size=BATCH, last_batch="wrap")
    loader.log_start(tmp_path, 0)
    steps = len(loader)
    for step, batch in enumerate(chain(loader, loader)):  # what fills a last batch has another loss there
        loader.losses.add(torch.full(batch["labels"].shape, float(step)), batch)
        loader.observe_step()
    found = read(tmp_path, (0, 2 * steps))
    assert len(found) == 2 * loader.run.num_samples
    assert all(loss / tokens == pytest.approx(step) for (step, _), (loss, tokens) in found.items())


def test_what_would_write_nothing_is_refused(config, tmp_path):
    with raises(ConfigError, "metrics.losses", fix="log_start"):
        next(iter(make(config)))
    with raises(ConfigError, "outputs.sample_index", "metrics.losses"):
        make({**config, "outputs": {"sample_index": False}})
    loader = make(config, micro_batch_size=BATCH)
    loader.log_start(tmp_path, 0)
    with raises(ConfigError, "metrics.losses", fix="observe_step"):
        for _ in loader:
            pass
    loader = make(config, micro_batch_size=BATCH)
    loader.log_start(tmp_path, 0)
    with raises(ConfigError, "metrics.losses", fix="losses.add"):
        loader.observe()
    with raises(ConfigError, "observe", "a second call"):
        loader.observe_step()
    batch = next(iter(loader))
    loader.losses.add(losses_of(batch, 1), batch)
    make({**config, "seed": 5}).log_start(tmp_path, 0)
    with raises(ConfigError, "metrics.losses", "another last launch"):
        loader.observe_step()
    make({**config, "metrics": True}).log_start(tmp_path / "without", 0)
    with raises(ConfigError, "losses", fix="metrics: {losses: true}"):
        read(tmp_path / "without", (0, 1))
    (tmp_path / "run.yaml").write_text(json.dumps(config))
    with raises(ConfigError, "losses", fix="--run-log"):
        query(open_run(tmp_path / "run.yaml"), "from losses", samples=5)
