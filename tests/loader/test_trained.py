"""TrainedLoader: the state is that of what was acknowledged, whatever a trainer has read beyond it."""

import copy
import itertools
import pickle

import pytest

import conceptloader as cl
from conceptloader.errors import ConfigError, ResumeError
from conceptloader.loader.torch.trained import EvaluationLoader, TrainedLoader
from tests.corpora.small import random_datasets
from tests.raises import raises


@pytest.fixture(scope="module")
def config(tmp_path_factory):
    return {
        "seq_len": 16,
        "datasets": random_datasets(tmp_path_factory.mktemp("data"), ["data"]),
        "outputs": {"sample_index": True},
    }


def loader_of(config, **options):
    """Steps of 12 samples in two micro batches of 3, on 2 ranks."""
    return TrainedLoader(
        config, **{"dp_size": 2, "dp_rank": 0, "micro_batch_size": 3, "global_batch_size": 12, **options}
    )


def samples(batches, count):
    return [int(i) for batch in itertools.islice(batches, count) for i in batch["sample_index"]]


def test_the_state_is_that_of_the_last_batch_acknowledged(config):
    loader = loader_of(config)
    batches = iter(loader)
    ahead = [next(batches) for _ in range(5)]  # two steps, and one micro batch of the third
    assert [batch["consumed_samples"] for batch in ahead] == [6, 12, 18, 24, 30]
    assert loader.consumed_samples == 0
    loader.acknowledge(ahead[1]["consumed_samples"])
    assert (loader.consumed_samples, loader.steps) == (12, 1)
    inside = loader.state_dict()
    batches.close()
    assert loader.state_dict() == inside, "after the loop as in it"
    assert loader.state_dict() == loader_of(config, dp_rank=1, consumed_samples=12).state_dict(), "on every rank"


def test_each_loop_begins_at_what_is_acknowledged(config):
    loader = loader_of(config)
    assert samples(iter(loader), 3) == [0, 2, 4, 6, 8, 10, 12, 14, 16]
    loader.acknowledge(12)
    assert samples(iter(loader), 2) == [12, 14, 16, 18, 20, 22]
    loader.acknowledge()
    assert loader.consumed_samples == 24


def test_an_older_loop_is_refused(config):
    loader = loader_of(config)
    first, second = iter(loader), iter(loader)
    next(first)
    next(second)
    with raises(ConfigError, found="ended by a newer one over the same loader"):
        next(first)
    assert samples(second, 1) == [6, 8, 10]


def test_epochs_follow_each_other(config):
    loader = loader_of(config, epoch_samples=24)
    assert len(loader) == 4
    seen = []
    for _ in range(3):
        for batch in loader:
            seen.extend(batch["sample_index"].tolist())
            loader.acknowledge(batch["consumed_samples"])
    assert seen == list(range(0, 72, 2))
    resumed = loader_of(config, epoch_samples=24)
    resumed.load_state_dict(loader_of(config, consumed_samples=36).state_dict())
    assert len(list(resumed)) == 2, "the rest of the epoch"
    resumed.acknowledge()
    assert samples(iter(resumed), 9) == list(range(48, 72, 2)), "the epoch after a resume"
    with raises(ConfigError, expected="a multiple of the 12 samples of a step", fix="to 24"):
        loader_of(config, epoch_samples=30)


def test_steps_and_samples_have_to_agree(config):
    loader = loader_of(config)
    loader.check_step(0)
    handed_out = cl.make_dataloader(config, micro_batch_size=12, consumed_samples=48).state_dict()
    loader.load_state_dict(handed_out)
    loader.check_step(4)
    with pytest.raises(
        ResumeError, match=r"made 3 steps, but .* at 48 samples, 4 steps \(the next takes 12\): .* skipped"
    ):
        loader.check_step(3)
    with pytest.raises(ResumeError, match=r"made 5 steps, but .* repeated"):
        loader.check_step(5)
    loader.load_state_dict(
        cl.make_dataloader(config, micro_batch_size=6, global_batch_size=12, consumed_samples=42).state_dict()
    )
    with raises(ResumeError, found="stands at 42 samples, no whole number of steps"):
        loader.check_step(3)


def test_steps_are_counted_through_changed_batch_sizes(config):
    loader = loader_of(config)
    list(itertools.islice(loader, 6))
    loader.acknowledge_step(3)
    larger = loader_of(config, global_batch_size=24)
    larger.load_state_dict(loader.state_dict())
    larger.check_step(3)
    with pytest.raises(ResumeError):
        larger.check_step(1)
    list(itertools.islice(larger, 4))
    larger.acknowledge_step(4)
    assert (larger.consumed_samples, larger.steps) == (60, 4)


def test_a_last_step_that_is_short_counts(config):
    loader = loader_of(config, num_samples=30, last_batch="partial")
    assert sum(1 for _ in loader) == len(loader) == 5
    loader.acknowledge_step(3)
    assert (loader.consumed_samples, loader.steps) == (30, 3)
    with raises(ConfigError, found="the run of num_samples=30 samples has ended at 30"):
        list(loader)


def test_what_was_not_handed_out_cannot_be_acknowledged(config):
    loader = loader_of(config)
    next(iter(loader))
    with pytest.raises(ConfigError, match=r"found 12 samples, expected 0 .* to 6"):
        loader.acknowledge(12)
    loader.acknowledge(6)
    with raises(ConfigError, found="0 samples", expected="6"):
        loader.acknowledge(0)


def test_a_trainer_that_acknowledges_nothing_is_refused_early(config):
    with raises(ConfigError, expected="this loader is not told what is trained"):
        list(itertools.islice(loader_of(config), 30))


def test_accumulation_of_the_trainer(config):
    loader = loader_of(config)
    loader.check_accumulation(2, "accumulate")
    with raises(ConfigError, "accumulate", "4", "2: a step of 12 samples has that many"):
        loader.check_accumulation(4, "accumulate")


@pytest.mark.parametrize("clone", [copy.deepcopy, lambda one: pickle.loads(pickle.dumps(one))], ids=["copy", "pickle"])
def test_a_copy_stands_at_what_is_acknowledged(config, clone):
    loader = loader_of(config)
    batches = iter(loader)
    samples(batches, 3)
    loader.acknowledge(12)
    other = clone(loader)
    assert samples(iter(other), 1) == [12, 14, 16]
    assert samples(batches, 1) == [18, 20, 22], "the first one goes on"


def test_wrapped_twice(config):
    loader = loader_of(config)
    with raises(ConfigError, found="<TrainedLoader of data:"):
        TrainedLoader(loader, micro_batch_size=3)


def test_evaluation_begins_at_its_beginning_each_time(config):
    options = {"dp_size": 2, "dp_rank": 1, "micro_batch_size": 3}
    for content, ends in [({**config, "order": "sequential"}, {}), (config, {"num_samples": 36})]:
        loader = EvaluationLoader(content, **options, **ends)
        one = [batch["sample_index"].tolist() for batch in loader]
        samples(iter(loader), 2)  # broken off
        assert [batch["sample_index"].tolist() for batch in loader] == one
        assert len(one) == len(loader)
        assert not hasattr(loader, "state_dict")
    with raises(ConfigError, found="a run without an end"):
        EvaluationLoader(config, **options)
    with raises(ConfigError, "evaluation", expected="some would count twice"):
        EvaluationLoader(config, **options, num_samples=36_000)
