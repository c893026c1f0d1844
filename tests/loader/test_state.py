"""The loader's state: what is refused, at which positions it may stand, and what is trained after it."""

import itertools
import json
import logging

import pytest
import torch
import torch.distributed.checkpoint as dcp
from torch.utils.data import DataLoader

import conceptloader as cl
from conceptloader.errors import ConceptloaderError, ConfigError, ResumeError
from conceptloader.loader.torch.trained import TrainedLoader
from conceptloader.order.progress.state import as_leaf
from tests.raises import raises

KEY = "conceptloader"


def make(config, **options):
    return cl.make_dataloader(config, **{"micro_batch_size": 8, **options})


def taken(loader, batches=None):
    """The samples of so many micro batches, or of all that are left."""
    with loader:
        return [k for batch in itertools.islice(loader, batches) for k in batch["sample_index"].tolist()]


def after(config, batches=1, **options):
    loader = make(config, **options)
    taken(loader, batches)
    return loader.state_dict()


def evaluation(config):
    datasets = {name: {"path": entry["path"]} for name, entry in config["datasets"].items()}
    return {**config, "order": "sequential", "phases": [], "datasets": datasets}


@pytest.mark.parametrize(
    "edit",
    [
        ('"consumed_samples":8', '"consumed_samples":7'),
        ('"seed":5', '"seed":6'),
        ('"version":3', '"version":3,"more":1'),
        ('{"checksum"', '{"check'),
    ],
)
def test_a_state_edited_by_hand_is_refused(config, edit):
    state = after(config)
    edited = {KEY: state[KEY].replace(*edit)}
    assert edited != state
    loader = make(config)
    with raises(ResumeError, "loader state", fix="Loader.state_dict_at"):
        loader.load_state_dict(edited)
    assert taken(loader, 1) == list(range(8))  # it stands where it stood


@pytest.mark.parametrize(
    "change", [{"more": 1}, {"count_start": -1}, {"step_start": True}, {"spec": None}, {"consumed_samples": None}]
)
def test_a_state_with_other_keys_or_values_is_refused_whatever_its_checksum(config, change):
    fields = json.loads(after(config)[KEY]) | change
    del fields["checksum"]
    sound = {key: value for key, value in fields.items() if value is not None}
    with pytest.raises(ResumeError, match=f"loader state: .*{next(iter(change))}"):
        make(config).load_state_dict(as_leaf(sound))


def test_a_state_of_something_else_says_what_it_is(config):
    loader, sampler = cl.make_dataloader(config, micro_batch_size=4), cl.EpochSampler(24, 1, 0)
    trained = TrainedLoader(config, micro_batch_size=4, global_batch_size=4)
    own = loader.state_dict()
    kinds = {"loader": own, "sampler": sampler.state_dict(), "sampler's iterator": iter(sampler).state_dict()}
    strangers = {
        "dict with 'weight', 'bias', expected a state of version 3; pass what conceptloader's own": torch.nn.Linear(
            1, 1
        ).state_dict(),
        "dict with 'model', 'data', expected .*; pass its 'data'": {"model": {}, "data": own},
        "dict with nothing": {},
        "version 1, expected .*; resume with the release .* that saved it; or, .* consumed_samples": {"version": 1},
        "version True, expected .*; resume with the release": {"version": True},
        "string 'checkpoint.pt', expected .*; load the checkpoint": "checkpoint.pt",
        "NoneType, expected .*; give the dict": None,
        "list, expected .*; give the dict": [own],
    }
    for kind, load in [
        ("loader", loader.load_state_dict), ("loader", trained.load_state_dict),
        ("sampler", sampler.load_state_dict), ("sampler's iterator", iter(sampler).load_state_dict),
    ]:  # fmt: skip
        for found, state in kinds.items():
            if found == kind:
                load(state)
                continue
            with pytest.raises(ResumeError, match=f"found the state of a {found}, expected .* {kind}; pass"):
                load(state)
        for found, state in strangers.items():
            with pytest.raises(ResumeError, match=f"found .*{found}"):
                load(state)


def test_a_position_beyond_the_end_is_refused(config):
    state = after(config, 3)
    with raises(ResumeError, found="24 consumed samples", expected="num_samples=16"):
        make(config, num_samples=16).load_state_dict(state)


# torch.distributed.checkpoint


@pytest.mark.parametrize("stateful", [True, False])
def test_distributed_checkpoints_resume_exactly_or_not_at_all(config, tmp_path, stateful):
    def load(**change):
        loader = make({**config, **change})
        if stateful:
            dcp.load({"loader": loader}, checkpoint_id=tmp_path)
        else:
            state = {"loader": loader.state_dict(), "model": {"w": torch.zeros(3)}}
            dcp.load(state, checkpoint_id=tmp_path)
            loader.load_state_dict(state["loader"])
        return loader

    loader = make(config)
    taken(loader, 3)
    saved = {"loader": loader if stateful else loader.state_dict(), "model": {"w": torch.ones(3)}}
    dcp.save(saved, checkpoint_id=tmp_path)
    assert taken(load(), 2) == list(range(24, 40))
    with pytest.raises(ResumeError, match="seed: saved 5, now 6"):
        load(seed=6)


# a state for any position


def test_a_position_between_two_micro_batches_has_no_state(config):
    loader = make(config, dp_rank=0, dp_size=2, consumed_samples=6, num_samples=150)
    assert loader.state_dict_at(22) != loader.state_dict_at(6)
    for earlier in (0, 3):  # where batches may have been others
        with make(config) as resumed:
            resumed.load_state_dict(loader.state_dict_at(earlier))
            assert resumed.consumed_samples == earlier
    with raises(ConfigError, found="21", expected="6 or 22, where micro batches of 8 on 2 ranks end"):
        loader.state_dict_at(21)
    with raises(ConfigError, found="166", expected="150, where the run ends"):
        make(config, dp_rank=0, dp_size=2, num_samples=150, last_batch="partial").state_dict_at(166)
    for wrong in (-1, 1.5, True, "8"):
        with raises(ConfigError, "consumed_samples"):
            loader.state_dict_at(wrong)


# length


def test_a_shuffled_run_does_not_end_with_its_first_samples(config):
    with raises(ConfigError, "last_batch", "wrap with a shuffled order", fix="order: sequential"):
        make(config, num_samples=50, last_batch="wrap")


def test_a_run_without_end_has_no_length_and_is_true(config):
    loader = make(config)
    assert loader
    with pytest.raises(TypeError, match="expected a run with an end; pass num_samples") as caught:
        len(loader)
    assert isinstance(caught.value, ConceptloaderError)


# the end of a run


def test_where_a_global_batch_cannot_be_gone_on_with_nothing_is_left_out_silently(config):
    state = after(config, 1, global_batch_size=32, num_samples=160)
    sizes = {"micro_batch_size": 16, "global_batch_size": 32}
    with pytest.raises(ResumeError, match=r"8 samples into a global batch.* would drop 24 samples"):
        make(config, **sizes, num_samples=160).load_state_dict(state)
    for options in ({"num_samples": 160, "last_batch": "partial"}, {"num_samples": 168}):
        loader = make(config, **sizes, **options)
        loader.load_state_dict(state)
        assert taken(loader) == list(range(8, options["num_samples"]))


def test_a_launch_that_was_logged_before_the_state_was_loaded_answers_for_nothing(config, tmp_path):
    state = after(config)
    loader = make(config)
    loader.log_start(tmp_path, 0)
    loader.load_state_dict(state)
    with raises(ConfigError, "log_start", fix="after load_state_dict"):
        next(iter(loader))
    loader.log_start(tmp_path, 1)
    assert taken(loader, 1) == list(range(8, 16))


def test_a_second_loop_after_the_end_is_an_error(config, caplog):
    loader = make(config, num_samples=16)
    assert taken(loader) == list(range(16))
    for _ in range(2):
        with raises(ConfigError, found="num_samples=16 samples has ended", fix="larger num_samples"):
            taken(loader)
    longer = make(config, num_samples=32)
    longer.load_state_dict(loader.state_dict())
    assert taken(longer) == list(range(16, 32))
    # A job that has ended and is started again has nothing to do: it says so.
    again = make(config, num_samples=16)
    again.load_state_dict(loader.state_dict())
    with caplog.at_level(logging.WARNING, "conceptloader"):
        assert taken(again) == []
    assert "has ended at 16: nothing is left to read" in caplog.text


def test_a_run_of_less_than_a_global_batch_is_refused(config):
    with raises(ConfigError, "num_samples", "5", "a global batch of 8"):
        make(config, num_samples=5)
    assert taken(make(config, num_samples=5, last_batch="partial")) == list(range(5))


# evaluation


def test_each_evaluation_starts_at_its_beginning(config):
    loader = make(evaluation(config))
    total = loader.run.num_samples
    assert taken(loader, 2) == taken(loader, 2) == list(range(16))  # a limited one too
    assert taken(loader) == taken(loader) == list(range(total))
    # One that was stopped in the middle goes on there, once.
    taken(loader, 2)
    resumed = make(evaluation(config))
    resumed.load_state_dict(loader.state_dict())
    assert taken(resumed) == list(range(16, total))
    assert taken(resumed) == list(range(total))


def test_the_end_of_a_pass_is_not_taken_for_the_beginning_of_the_next(config):
    """Some trainers ask for the rest of the pass then, others for the next one: never an empty loop in its place."""
    loader = make(evaluation(config))
    resumed = make(evaluation(config))
    resumed.load_state_dict(loader.state_dict_at(loader.run.num_samples))
    with raises(ConfigError, found="end of a pass", fix="state_dict_at(0)"):
        taken(resumed)
    resumed.load_state_dict(resumed.state_dict_at(0))
    assert taken(resumed) == list(range(loader.run.num_samples))
    resumed.load_state_dict(resumed.state_dict())  # after the loop the next pass is at its beginning
    assert taken(resumed) == list(range(loader.run.num_samples))


# what else it is given to


@pytest.mark.parametrize("options", [{"batch_size": None}, {}, {"batch_size": 2, "num_workers": 1}])
def test_a_dataloader_around_a_loader_is_refused(config, options):
    with pytest.raises(ConfigError, match="iterate over the Loader directly, or pass"):
        next(iter(DataLoader(make(config, num_samples=16), **options)))


DEVICES = ["cuda:9999", "meta", "nonsense", torch.device("mps"), *["cuda"] * (not torch.cuda.is_available())]


@pytest.mark.parametrize("device", DEVICES)
def test_a_device_that_is_not_there_is_refused_when_the_loader_is_made(config, device):
    with pytest.raises(ConfigError, match="device: found"):
        make(config, device=device)


def test_open_blend_takes_what_make_dataloader_takes(config, tmp_path):
    path = tmp_path / "run.yaml"
    path.write_text(json.dumps(config))  # which is YAML
    sources = path, str(path), config, cl.load_config(config), cl.open_blend(config)
    assert len({make(source).blend.spec.hash for source in sources}) == 1
    for given, found in [((sources[-1], {}), "with an open Blend"), ((3,), "3")]:
        with raises(ConfigError, found=found):
            cl.open_blend(*given)


def test_steps_that_a_resume_shifts_are_said(config, caplog):
    state = after(config, micro_batch_size=4, global_batch_size=12)
    loader = make(config, micro_batch_size=12, global_batch_size=12)
    loader.load_state_dict(state)
    assert "resuming 4 samples into a step" in caplog.text
    assert taken(loader, 1) == list(range(4, 16))
