"""Data stages without processes: what is accepted as the continuation of what, and the account that nanotron keeps."""

import dataclasses
import json
import pickle
import re
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from conceptloader.blend import load_config, open_blend
from conceptloader.errors import ConfigError, ResumeError
from conceptloader.integrations.nanotron_lm import launch
from conceptloader.integrations.nanotron_lm.data import StageDataset, make_dataset, report
from conceptloader.integrations.nanotron_lm.options import NanotronOptions
from conceptloader.integrations.nanotron_lm.own_script import build_dataloader
from conceptloader.integrations.nanotron_lm.state import NAME, State
from conceptloader.order.progress.runlog import RunLog
from conceptloader.order.progress.state import sealed
from tests.corpora.for_megatron import write_config, write_datasets
from tests.raises import raises


def stage(
    dataset: dict[str, Any], saved: State | None = None, name: str = "first", consumed: int = 0, **kwargs: Any
) -> StageDataset:
    section = {key: value for key, value in dataset.items() if key not in ("type", "nanotron")}
    seq_len = kwargs.pop("seq_len", 64)
    options = NanotronOptions.parse(dataset.get("nanotron"), "nanotron")
    blend = open_blend(load_config(section, defaults={"seed": 42}).with_seq_len(seq_len))
    return make_dataset(blend, options, saved=saved, stage=name, consumed_in_stage=consumed, **kwargs)


def trained(dataset: StageDataset, samples: int) -> StageDataset:
    """As nanotron calls it after a step; its first argument counts over all stages and is of no use."""
    dataset.update_consumption_metrics(start_idx=10**9, end_idx=10**9 + samples, sequence_length=64)
    return dataset


def with_weights(dataset: dict[str, Any], **weights: float) -> dict[str, Any]:
    members = {name: {**dataset["datasets"][name], "weight": weight} for name, weight in weights.items()}
    return {**dataset, "datasets": members}


def test_consumption_is_exact(dataset: dict[str, Any]) -> None:
    """By dataset, cumulative, and all of it: nanotron asserts the sum when it loads a checkpoint."""
    opened = stage(dataset)
    for step in range(1, 6):
        trained(opened, 7)
        tokens = {name: stats["tokens"] for name, stats in opened.get_consumption_stats().items()}
        assert sum(tokens.values()) == step * 7 * 64
        counts = dict(zip(opened.blend.order.names, opened.blend.order.counts(step * 7), strict=True))
        assert tokens == {name: count * 64 for name, count in counts.items()}


def test_skipped_samples_are_not_consumed(dataset: dict[str, Any]) -> None:
    opened = trained(stage({**dataset, "skip": [{"at": 5, "count": 100}]}), 20)
    assert sum(stats["tokens"] for stats in opened.get_consumption_stats().values()) == 20 * 64


def test_a_stage_goes_on_where_the_checkpoint_was(dataset: dict[str, Any]) -> None:
    first = trained(stage(dataset), 24)
    again = stage(dataset, first.state(), consumed=24, tokens=first.tokens)
    assert (again.consumed, again.stage_start, again.tokens) == (24, 0, first.tokens)
    assert again.blend.spec == first.blend.spec


def test_a_new_stage_continues_every_dataset(dataset: dict[str, Any]) -> None:
    """Also a third one, and the resume of that: no draw is repeated or left out."""
    state = trained(stage(dataset), 24).state()
    second = stage(with_weights(dataset, web=1, math=3), state, name="second")
    assert (second.consumed, second.stage_start, second.get_consumption_stats()["math"]) == (24, 24, {"tokens": 0})
    state = trained(second, 16).state()
    third = stage(with_weights(dataset, code=1, web=1), state, name="third")
    assert (third.consumed, third.stage_start) == (40, 40)
    state = trained(third, 8).state()
    resumed = stage(with_weights(dataset, code=1, web=1), state, name="third", consumed=8)
    assert resumed.blend.spec == third.blend.spec
    members, draws = resumed.blend.order.locate_many(np.arange(60))
    for k in range(3):
        assert draws[members == k].tolist() == list(range(int((members == k).sum())))
    assert set(third.tokens) == {"code", "web"}


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"seed": 7}, "seed: saved 42, now 7"),
        ({"block": 8}, "block: saved 64, now 8"),
        ({"datasets.math.weight": 0.5}, r"phases.0.weights.math: saved 1/10, now 5/14"),
        ({"datasets.math.split": [0.0, 0.5]}, "datasets.math.windows: saved 23, now"),
        ({"skip": [{"at": 3, "count": 1}]}, "skips: saved"),
    ],
)
def test_a_changed_past_is_refused_unless_allowed(
    dataset: dict[str, Any], change: dict[str, Any], message: str
) -> None:
    state = trained(stage(dataset), 24).state()
    changed = json.loads(json.dumps(dataset))
    for path, value in change.items():
        *parents, key = path.split(".")
        section = changed
        for parent in parents:
            section = section[parent]
        section[key] = value
    with pytest.raises(ResumeError, match=message):
        stage(changed, state, consumed=24)
    allowed = {**changed, "nanotron": {"allow_changed": ["seed", "block", "phases", "datasets", "skips"]}}
    assert stage(allowed, state, consumed=24).consumed == 24


def test_a_new_sequence_length(dataset: dict[str, Any]) -> None:
    """In mid-epoch it is refused, unless the configuration accepts to read again."""
    state = trained(stage(dataset), 24).state()
    with raises(ResumeError, fix="on_new_seq_len: restart"):
        stage(dataset, state, name="longer", seq_len=128)
    longer = stage({**dataset, "on_new_seq_len": "restart"}, state, name="longer", seq_len=128)
    assert longer.consumed == 24
    trained(longer, 8)
    assert sum(stats["tokens"] for stats in longer.get_consumption_stats().values()) == 8 * 64
    assert set(longer.tokens) == {"web", "code", "math"}


def test_checkpoints_that_do_not_fit(dataset: dict[str, Any]) -> None:
    state = trained(stage(dataset), 24).state()
    with raises(ResumeError, found="nanotron has consumed 16 samples, but conceptloader.json says 24"):
        stage(dataset, state, consumed=16)
    with pytest.raises(ResumeError, match=f"24 samples of this data stage, but holds no {NAME}"):
        stage(dataset, None, consumed=24)
    with raises(ResumeError, found="has read from web"):
        stage(dataset, None, earlier={"web": 640, "elsewhere": 64})
    assert stage(dataset, None, earlier={"elsewhere": 64}).consumed == 0


def test_a_past_that_nothing_tells_of_is_accepted_by_name_and_with_numbers(
    dataset: dict[str, Any], caplog: pytest.LogCaptureFixture
) -> None:
    """What another loader has read has another order: what is left out and what may come again is said, both times."""
    trusting = {**dataset, "nanotron": {"allow_changed": ["unverified"]}}
    theirs, ours = {"/data/web": 10 * 64, "/data/code": 6 * 64}, {"web": 16 * 64}
    left_out = "sample 16 of conceptloader's order, which is another: those before it (code: 3, web: 13) are left out"
    for section, kwargs, message in (
        (trusting, {"consumed": 16, "tokens": theirs}, "another loader (/data/web: 10, /data/code: 6), in its order"),
        (trusting, {"consumed": 16, "tokens": theirs}, left_out),
        (trusting, {"consumed": 16, "tokens": ours}, "at sample 16 of the order that this configuration gives, what"),
        (trusting, {"earlier": ours}, "at sample 0 of the order that this configuration gives: what earlier"),
    ):
        with pytest.raises(ResumeError, match=re.escape(message)):
            stage(dataset, None, **kwargs)
        caplog.clear()
        assert stage(section, None, **kwargs).consumed == kwargs.get("consumed", 0)
        (warning,) = caplog.messages
        assert message in warning
    caplog.clear()
    assert stage(dataset, None, earlier=theirs).consumed == 0
    (warning,) = caplog.messages
    assert "another loader (/data/web: 10, /data/code: 6): this one begins at sample 0" in warning


def test_weights_that_no_model_would_get_are_refused(tmp_path: Path) -> None:
    path = write_config(write_datasets(tmp_path) / "data.yaml", outputs={"loss_weight": "weight"})
    with pytest.raises(ConfigError, match=r"outputs\.loss_weight: found weights, .* consume does not name"):
        build_dataloader(
            path, seq_len=16, micro_batch_size=2, global_batch_size=4, parallel_context=None, input_pp_rank=0,
            output_pp_rank=0,
        )  # fmt: skip


def test_a_vocabulary_too_small_is_refused(dataset: dict[str, Any]) -> None:
    with raises(ConfigError, "datasets.code", "250 tokens, expected at most the 128 of the model"):
        stage(dataset, vocabulary=128)


def test_max_epochs_is_checked_before_training(dataset: dict[str, Any]) -> None:
    dataset = json.loads(json.dumps(dataset))
    dataset["datasets"]["math"]["max_epochs"] = 1
    opened = stage(dataset)
    assert report(opened, 200)["math"]["samples"] in (19, 20, 21)
    with raises(ConfigError, "max_epochs"):
        report(opened, 300)


def test_state_survives_the_file_and_damage_is_found(dataset: dict[str, Any], tmp_path: Path) -> None:
    state = trained(stage(dataset), 24).state()
    assert State.read(tmp_path) is None
    state.write(tmp_path)
    assert State.read(tmp_path) == state
    assert [path.name for path in tmp_path.iterdir()] == [NAME]
    whole = (tmp_path / NAME).read_text()
    for damaged, message in (
        (whole[:100], "damaged"),
        (whole.replace('"consumed_samples"', '"consumed"'), "damaged"),
        (whole.replace('"seed": 42', '"seed": 43'), "it was edited"),
        (whole.replace('"consumed_samples": 24', '"consumed_samples": 23'), "it was edited"),
        (whole.replace('"version": 1', '"version": 9', 1), "version 9"),
    ):
        assert damaged != whole
        (tmp_path / NAME).write_text(damaged)
        with pytest.raises(ResumeError, match=message):
            State.read(tmp_path)


def test_a_file_that_cannot_be_is_refused_whatever_its_checksum(dataset: dict[str, Any], tmp_path: Path) -> None:
    trained(stage(dataset), 24).state().write(tmp_path)
    sound = json.loads((tmp_path / NAME).read_text())
    del sound["checksum"]
    for change in ({"spec": {}}, {"more": 1}, {"consumed_samples": -1}, {"consumed_samples": True}, {"data_stage": 3}):
        (tmp_path / NAME).write_text(json.dumps(sealed({**sound, **change})))
        with pytest.raises(ResumeError, match=f"{NAME}: .*(damaged|{next(iter(change))})"):
            State.read(tmp_path)


def test_the_run_log_answers_steps(dataset: dict[str, Any], tmp_path: Path) -> None:
    opened = stage(dataset)
    sizes = {"micro_batch_size": 2, "dp_size": 2}
    opened.begin(tmp_path / "checkpoints", step=0, global_batch_size=8, **sizes)
    again = stage(dataset, trained(opened, 24).state(), consumed=24)
    again.begin(tmp_path / "checkpoints", step=3, global_batch_size=12, **sizes)
    history = RunLog(tmp_path / "checkpoints").history
    assert [history.range_of(step) for step in (2, 3, 4)] == [(16, 24), (24, 36), (36, 48)]
    assert [start.data_stage for start in RunLog(tmp_path / "checkpoints").starts] == ["first", "first"]


def test_a_dataset_travels_to_worker_processes(dataset: dict[str, Any]) -> None:
    from conceptloader.batch.open import open_reader

    opened = stage(dataset)
    assert opened.__getitems__([1, 2]) is None  # a rank that needs no data
    opened.reader = open_reader(opened.blend)
    here, there = opened, pickle.loads(pickle.dumps(opened))
    a, b = here.__getitems__([5, 3]), there.__getitems__([5, 3])
    assert a is not None
    assert b is not None
    assert np.array_equal(a["input_ids"], b["input_ids"])


def test_a_stage_of_another_type_passes_the_state_on(
    dataset: dict[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(launch, "is_ours", lambda section: False)
    (tmp_path / "3").mkdir()
    (tmp_path / "6").mkdir()
    state = trained(stage(dataset), 24).state()
    state.write(tmp_path / "3")
    other = SimpleNamespace(data=SimpleNamespace(dataset=None))
    checkpoints = SimpleNamespace(load_lr_scheduler=True)
    run = launch.Run()
    run.start(SimpleNamespace(data_stages=[other], checkpoints=checkpoints, tokenizer=None), tmp_path / "3")
    run.save_state(tmp_path / "6")
    assert State.read(tmp_path / "6") == state
    assert stage(dataset, state, name="third").consumed == 24


@pytest.mark.parametrize("field", [f.name for f in dataclasses.fields(NanotronOptions)])
def test_options_refuse_wrong_types(field: str) -> None:
    with pytest.raises(ConfigError, match=f"nanotron.{field}: found 3"):
        NanotronOptions.parse({field: 3}, "nanotron")
