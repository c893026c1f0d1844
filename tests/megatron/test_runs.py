"""Steps, samples and states of a run, from Megatron's arguments and checkpoints."""

from argparse import Namespace
from pathlib import Path
from typing import Any

import pytest

from conceptloader.blend import load_config
from conceptloader.errors import ConfigError, ResumeError
from conceptloader.integrations.megatron_lm.data import MegatronData
from conceptloader.integrations.megatron_lm.options import (
    batch_schedule,
    first_sample,
    for_evaluation,
    one_pass,
    with_share,
)
from conceptloader.order.progress.state import OrderState
from tests.corpora.for_megatron import write_config, write_datasets
from tests.megatron.stock import dataset_config


def arguments(**changes: Any) -> Namespace:
    plain = {
        "global_batch_size": 8, "micro_batch_size": 2, "data_parallel_size": 2, "rampup_batch_size": None,
        "decrease_batch_size_if_needed": False, "seq_length": 10, "phase_transition_iterations": None,
        "iteration": 0, "consumed_train_samples": 0,
    }  # fmt: skip
    return Namespace(**{**plain, **changes})


def test_batch_schedules() -> None:
    assert batch_schedule(arguments()).to_list() == [[0, 8]]
    ramp = arguments(rampup_batch_size=["4", "4", "40"])
    assert batch_schedule(ramp).to_list() == [[0, 4], [40, 8]]
    ramp.step_batch_size_schedule = None  # a Megatron that has steps ignores the ramp
    assert batch_schedule(ramp).to_list() == [[0, 8]]
    steps = arguments(step_batch_size_schedule="0:4, 2K:8 1.5M:16")
    assert batch_schedule(steps).to_list() == [[0, 4], [200, 8], [150_000, 16]]
    with pytest.raises(ConfigError, match="expected a number"):
        batch_schedule(arguments(step_batch_size_schedule="0:many"))
    odd = arguments(global_batch_size=10, decrease_batch_size_if_needed=True)
    assert batch_schedule(odd).to_list() == [[0, 8]]


def test_phase_transitions_count_on() -> None:
    assert first_sample(arguments(iteration=7, consumed_train_samples=50)) == 0
    phases = {"phase_transition_iterations": [4, 6], "iteration": 5}
    assert first_sample(arguments(**phases, consumed_train_samples=40)) == 32
    with pytest.raises(ConfigError, match="found 36 consumed samples at iteration 5, expected 40"):
        first_sample(arguments(**phases, consumed_train_samples=36))


@pytest.mark.usefixtures("one_process")
def test_states_of_checkpoints(tmp_path: Path) -> None:
    config, rules = write_config(write_datasets(tmp_path) / "data.yaml"), dataset_config(16)
    data = MegatronData(config, rules, micro_batch_size=2)
    state = data.state(32)
    saved = OrderState.read(state, "state")
    assert (saved.consumed, saved.spec) == (32, data.spec)
    again = MegatronData(config, rules, micro_batch_size=1, consumed=32, saved=state)
    assert again.spec == data.spec
    with pytest.raises(ResumeError, match="found 32 consumed samples without a state of conceptloader"):
        MegatronData(config, rules, micro_batch_size=2, consumed=32)
    MegatronData(config, rules, micro_batch_size=2, consumed=32, accept=["loader"])
    first = {"version": 1, "spec_hash": data.spec.hash, "spec": data.spec.to_dict()}  # of earlier releases
    for old in (first, {**first, "consumed_samples": 32}):
        assert MegatronData(config, rules, micro_batch_size=1, consumed=32, saved=old).spec == data.spec
    edited = {"conceptloader": state["conceptloader"].replace('"seed":11', '"seed":5')}
    for damaged, message in (
        (edited, "it was edited"),
        ({**first, "spec": {**first["spec"], "seed": 5}}, "it was edited"),
        ({**first, "version": 9}, "found version 9"),
        (data.state(24), "saved at 24 consumed samples, but the run goes on at 32"),
    ):
        assert damaged != state
        with pytest.raises(ResumeError, match=message):
            MegatronData(config, rules, micro_batch_size=2, consumed=32, saved=damaged)
    for changes, message in (({"seed": 12}, "seed: saved 11, now 12"), ({"block": 8}, "block: saved 64, now 8")):
        other = write_config(tmp_path / "other.yaml", **changes)
        with pytest.raises(ResumeError, match=message):
            MegatronData(other, rules, micro_batch_size=2, consumed=32, saved=state)
        assert MegatronData(other, rules, micro_batch_size=2, consumed=32, saved=state, accept=list(changes)).spec
    later = [{"start": 32, "weights": {"code": 0.5, "web": 0.5}}]
    ahead = MegatronData(
        write_config(tmp_path / "other.yaml", phases=later), rules, micro_batch_size=2, consumed=32, saved=state
    )
    assert [phase.start for phase in ahead.spec.phases] == [0, 32]
    with pytest.raises(ResumeError, match="seq_len: changed at 32 consumed samples"):
        MegatronData(config, dataset_config(32), micro_batch_size=2, consumed=32, saved=state)
    with pytest.raises(ConfigError, match="seq_len: found 64"):
        MegatronData(write_config(tmp_path / "other.yaml", seq_len=64), rules, micro_batch_size=2)


@pytest.mark.usefixtures("one_process")
def test_weights_need_a_stage_that_gets_them(tmp_path: Path) -> None:
    config = write_config(write_datasets(tmp_path) / "data.yaml", outputs={"loss_weight": "weight"})
    with pytest.raises(ConfigError, match=r"outputs\.loss_weight: found with concept stage none"):
        MegatronData(config, dataset_config(16), micro_batch_size=2, stage="none")
    assert MegatronData(config, dataset_config(16), micro_batch_size=2, stage="last").spec


def test_evaluation_configs(tmp_path: Path) -> None:
    phases = [{"start": 0, "weights": {"code": 1.0}}, {"start": 100, "weights": {"web": 1.0}}]
    quarantine = [{"dataset": name, "tokens": [0, 10]} for name in ("code", "web")]
    datasets = {name: {"path": name, "split": [0.5, 1.0]} for name in ("code", "web")}
    path = write_config(tmp_path / "c.yaml", datasets=datasets, phases=phases, quarantine=quarantine)
    config = for_evaluation(load_config(path))
    assert list(config.datasets) == ["code"]
    assert [entry.dataset for entry in config.quarantine] == ["code"]
    whole = one_pass(load_config(path))
    assert (whole.order, list(whole.datasets)) == ("sequential", ["code", "web"])
    assert [entry.split for entry in with_share(whole, (0.8, 1.0)).datasets.values()] == [(0.9, 1.0)] * 2


def test_evaluations_of_an_order_in_lanes_have_none(tmp_path: Path) -> None:
    """The part that is held out may be too small for them, and a pass in order has none."""
    datasets = {name: {"path": name, "weight": 1.0, "lanes": name == "web"} for name in ("code", "web")}
    path = write_config(tmp_path / "c.yaml", datasets=datasets, order={"lanes": 64}, order_version=2)
    config = load_config(path)
    assert config.lanes is not None
    for found, kind in ((for_evaluation(config), "shuffled"), (one_pass(config), "sequential")):
        assert (found.order, found.lanes, found.order_version) == (kind, None, None)
        assert list(found.datasets) == ["code", "web"]


@pytest.mark.usefixtures("one_process")
def test_a_changed_past_is_accepted_in_the_launchers_words(tmp_path: Path) -> None:
    config, rules = write_config(write_datasets(tmp_path) / "data.yaml"), dataset_config(16)
    state = MegatronData(config, rules, micro_batch_size=2).state(32)
    other = write_config(tmp_path / "other.yaml", seed=12, block=8)
    with pytest.raises(ResumeError, match=r"--conceptloader-accept seed block$") as refused:
        MegatronData(other, rules, micro_batch_size=2, consumed=32, saved=state)
    assert "allow_changed" not in str(refused.value)
