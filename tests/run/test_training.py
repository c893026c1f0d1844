"""The account of a run: its limits, its states, and the checkpoint at which it is continued."""

import errno
import json
import shutil
from functools import partial
from pathlib import Path

import pytest

import conceptloader as cl
from conceptloader.errors import ConfigError, ResumeError
from conceptloader.loader.torch.trained import TrainedLoader
from tests.raises import raises

ODM = {"mixing": {"odm": {}}}


def taken(loader, batches):
    with loader:
        return [int(k) for _, batch in zip(range(batches), loader, strict=False) for k in batch["sample_index"]]


@pytest.fixture
def saved(config, tmp_path):
    """A checkpoint of another trainer at 16 samples."""
    path = tmp_path / "first" / "state.json"
    path.parent.mkdir()
    path.write_text(json.dumps(cl.batches(config, micro_batch_size=8).state_dict_at(16)))
    return path.parent


def test_two_runs_that_live_in_one_folder(config, tmp_path, caplog):
    first, second = (cl.batches(config, micro_batch_size=8) for _ in range(2))
    first.log_start(tmp_path, 0)
    first.set_weights({"web": 2.0, "books": 1.0}, at=64)
    first.state_dict()
    assert "another run" not in caplog.text
    second.log_start(tmp_path, 0)
    second.state_dict()
    assert "another run" not in caplog.text
    first.state_dict()
    assert "another run was launched in this folder" in caplog.text


def test_a_checkpoint_is_saved_where_its_run_log_cannot_be_looked_at(config, tmp_path, monkeypatch):
    def stale(*_, **__):
        raise OSError(errno.ESTALE, "Stale file handle")

    loader = cl.batches(config, micro_batch_size=8)
    loader.log_start(tmp_path, 0)
    state = loader.state_dict()
    monkeypatch.setattr(Path, "stat", stale)
    assert loader.state_dict() == state


# max_epochs


def limited(config):
    """With max_epochs of web, and how many samples it allows."""
    limit = {**config["datasets"]["web"], "max_epochs": 1}
    changed = {**config, "datasets": {**config["datasets"], "web": limit}}
    order = cl.open_blend(changed).order
    assert isinstance(order, cl.Mixture)
    last = next(n for n in range(1, 10_000) if order.counts(n + 1)[1] > order.sizes[1])
    assert order.longest_run() == last
    return changed, last


def test_max_epochs_holds_for_weights_of_a_state(config):
    """As for those of set_weights and continue_from: the run would end beyond it."""
    changed, last = limited(config)
    source = cl.batches(config, micro_batch_size=2)
    for _ in zip(range(2), source, strict=False):
        pass
    source.set_weights({"books": 1, "web": 99})
    state = source.state_dict()
    loader = cl.batches(changed, micro_batch_size=2, num_samples=last)
    with raises(ConfigError, "datasets.web.max_epochs"):
        loader.load_state_dict(state)
    assert (loader.consumed_samples, loader.blend.spec.live) == (0, [])
    with raises(ConfigError, "datasets.web.max_epochs"):
        cl.GrainSource(changed, num_samples=last + 2)[0]


def test_max_epochs_holds_over_changes_of_seq_len(config):
    """An epoch at one length counts for that dataset at the next; the plan is checked once its past is known."""

    def opened(seq_len, most, samples=None, state=None):
        datasets = {"books": {**config["datasets"]["books"], "max_epochs": most}}
        changed = {**config, "seq_len": seq_len, "datasets": datasets}
        loaders = cl.batches(changed, micro_batch_size=1, num_samples=samples), cl.GrainSource(changed, samples)
        for one in loaders if state else ():
            one.load_state_dict(state)
        return loaders

    (short, _), (long, _) = opened(32, 2), opened(64, 2)
    m, n = short.blend.order.sizes[0], long.blend.order.sizes[0]
    state = short.state_dict_at(m)
    loader, source = opened(64, 2, m + n, state)
    assert (next(iter(loader))["sample_index"], source[0]["sample_index"]) == ([m], m)
    for one in opened(64, 2, m + n):  # nothing was read at another length
        with raises(ConfigError, "datasets.books.max_epochs", f"reads {m + n} of its {n}"):
            next(iter(one))
    limit = {"path": "datasets.books.max_epochs", "fix": "datasets.books.weight"}
    with raises(ConfigError, found=f"{m} of its {m} and {n + 1} of its {n}", **limit):
        opened(64, 2, m + n + 1, state)
    loader, _ = opened(64, 1, None, state)
    with raises(ConfigError, found=f"{m} of its {m} and 1 of its {n}", **limit):
        next(iter(loader))


# A mixture that learns


def learning(config):
    loader = cl.batches({**config, **ODM}, micro_batch_size=8)
    for k, _ in zip(range(3), loader, strict=False):
        loader.observe({"books": 1.0 + k, "web": 2.0})
    return loader


def test_a_mixture_has_no_state_of_earlier_positions(config):
    loader = learning(config)
    loader.state_dict_at(24)
    with raises(ConfigError, "consumed_samples", "observed the steps up to 24"):
        loader.state_dict_at(8)


# continue_from


def test_a_checkpoint_to_continue_from_may_be_gone_once_there_are_own_ones(config, saved):
    moved = {**config, "continue_from": str(saved)}
    state = cl.batches(moved, micro_batch_size=8).state_dict_at(24)
    shutil.rmtree(saved)
    loader = cl.batches(moved, micro_batch_size=8)
    for ask in (lambda: next(iter(loader)), loader.state_dict):
        with raises(ResumeError, "continue_from", str(saved)):
            ask()
    loader.load_state_dict(state)
    assert (loader.run.count_start, taken(loader, 1)) == (16, list(range(24, 32)))
    source = cl.GrainSource(moved)
    with raises(ResumeError, "continue_from"):
        source[0]
    source.load_state_dict(state)
    assert int(source[0]["sample_index"]) == 24


def test_the_mixing_of_a_checkpoint_is_not_dropped(config, tmp_path):
    """One door for `continue_from` and load_state_dict, with one list of checks."""
    path = tmp_path / "learned.json"
    path.write_text(json.dumps(cl.batches({**config, **ODM}, micro_batch_size=8).state_dict_at(0)))
    moved = {**config, "continue_from": str(path)}
    for opened in (partial(TrainedLoader, micro_batch_size=8), cl.SampleDataset):
        with raises(ResumeError, "mixing", "no controller", "odm, as saved", fix='allow_changed=["mixing"]'):
            opened(moved)
        opened(moved, allow_changed=["mixing"])


def test_an_accepted_mixing_begins_again_once(config, caplog):
    """The option stays in a script that is restarted; what was learned since stays, too."""
    options = {"micro_batch_size": 8, "allow_changed": ["mixing"]}
    state, learned = (first := learning(config)).state_dict(), first.mixing.state()
    again = cl.batches({**config, **ODM}, **options)
    again.load_state_dict(state)
    assert again.mixing.state() == learned
    assert "begins again" not in caplog.text
    other = cl.batches({**config, "mixing": {"doremi": {}}}, **options)
    other.load_state_dict(state)
    assert other.mixing.steps == 0
    assert "doremi begins again, as accepted: the checkpoint has the state of odm" in caplog.text
    cl.batches(config, **options).load_state_dict(state)
    assert "weights stay as they are, as accepted: the checkpoint has the state of odm" in caplog.text


def test_back_to_a_state_before_weights_were_set(config):
    """On the loader that set them, which resumes what the configuration says, not what it has come to."""
    loader = cl.batches(config, micro_batch_size=8)
    states = []
    for k, _ in zip(range(4), loader, strict=False):
        states.append(loader.state_dict())
        loader.set_weights({"books": 1 + k, "web": 2})
    for k, state in enumerate(states):
        new = cl.batches(config, micro_batch_size=8)
        for one in (loader, new):
            one.load_state_dict(state)
        assert loader.state_dict() == new.state_dict() == state
        assert loader.blend.spec == new.blend.spec
        assert taken(loader, 3) == list(range(8 * k + 8, 8 * k + 32))


def test_an_error_of_the_reader_changes_nothing(config, monkeypatch):
    loader = cl.batches(config, micro_batch_size=8)
    state = cl.batches(config, micro_batch_size=8).state_dict_at(24)
    before = (loader.blend, loader.run.plan, loader.consumed_samples)

    def fails(*_):
        raise ConfigError("tracks", "none")

    monkeypatch.setattr("conceptloader.loader.batch.reader.BatchReader.on", fails)
    with raises(ConfigError, "tracks"):
        loader.load_state_dict(state)
    assert (loader.blend, loader.run.plan, loader.consumed_samples) == before
