"""Data stages without processes: what is accepted as the continuation of what, and the account that nanotron keeps."""

import dataclasses
import json
import pickle
from types import SimpleNamespace

import numpy as np
import pytest
import torch
import yaml

import conceptloader as cl
from conceptloader.config import load_config, open_blend
from conceptloader.errors import ConfigError, ResumeError
from conceptloader.integrations.nanotron_lm import launch
from conceptloader.integrations.nanotron_lm.data import open_stage
from conceptloader.integrations.nanotron_lm.options import NO_TOKENIZER, NanotronOptions, replace_in
from conceptloader.integrations.nanotron_lm.own_script import build_dataloader
from conceptloader.integrations.nanotron_lm.state import NAME, State, check_layout
from conceptloader.loader.batch.open import open_reader
from conceptloader.order.progress.state import KEY, as_leaf
from tests.corpora.for_megatron import write_config, write_datasets
from tests.nanotron.support import context
from tests.raises import cells, raises


def stage(dataset, saved=None, name="first", consumed=0, **options):
    section = {key: value for key, value in dataset.items() if key not in ("type", "nanotron")}
    seq_len, sizes = options.pop("seq_len", 64), {"step": 0, "micro_batch_size": 2, "global_batch_size": 8}
    parsed = NanotronOptions.parse(dataset.get("nanotron"), "nanotron")
    blend = open_blend(load_config(section, defaults={"seed": 42}).with_seq_len(seq_len))
    options = {**sizes, "saved": saved, "name": name, "in_stage": consumed, **options}
    return open_stage(blend, parsed, context(dp=(0, 2)), **options)


def trained(dataset, samples):
    """As nanotron calls it after a step; its first argument counts over all stages and is of no use."""
    dataset.update_consumption_metrics(start_idx=10**9, end_idx=10**9 + samples, sequence_length=64)
    return dataset


def with_weights(dataset, **weights):
    members = {name: {**dataset["datasets"][name], "weight": weight} for name, weight in weights.items()}
    return {**dataset, "datasets": members}


@pytest.mark.parametrize("skip", [[], [{"at": 5, "count": 100}]], ids=["all", "skipped"])
def test_consumption_is_exact(dataset, skip):
    """By dataset, cumulative, and all of it: nanotron asserts the sum when it loads a checkpoint."""
    opened = stage({**dataset, "skip": skip})
    for step in range(1, 6):
        trained(opened, 8)
        tokens = {name: stats["tokens"] for name, stats in opened.get_consumption_stats().items()}
        assert sum(tokens.values()) == step * 8 * 64
        order = opened.run.blend.order
        drawn = [order.names[order.sample(sample)[0]] for sample in range(step * 8)]
        assert tokens == {name: drawn.count(name) * 64 for name in order.names}


def test_callbacks_come_after_the_step(dataset):
    """Not while it takes its micro batches: pipeline ranks do so at different times, and callbacks may call for all."""
    seen = []
    end = cl.metrics.on_step(
        lambda one: seen.append((opened.consumed, one.consumed_samples, one.waited_seconds, one.masked))
    )
    opened = stage(dataset)
    for step in (1, 2):
        for _ in range(2):
            opened.took(0.25, torch.tensor([[True, False], [True, True]]))
        assert len(seen) == step - 1
        trained(opened, 8)
    end()
    assert seen == [(8, 8, 0.5, 0.25), (16, 16, 0.5, 0.25)]


def test_a_new_stage_continues_every_dataset(dataset):
    """Also a third one, and the resume of that: no draw is repeated or left out."""
    state = trained(stage(dataset), 24).state()
    second = stage(with_weights(dataset, web=1, math=3), state, name="second")
    assert (second.consumed, second.stage_start, second.get_consumption_stats()["math"]) == (24, 24, {"tokens": 0})
    state = trained(second, 16).state()
    third = stage(with_weights(dataset, code=1, web=1), state, name="third")
    assert (third.consumed, third.stage_start) == (40, 40)
    state = trained(third, 8).state()
    resumed = stage(with_weights(dataset, code=1, web=1), state, name="third", consumed=8)
    assert resumed.run.blend.spec == third.run.blend.spec
    assert set(third.tokens) == {"code", "web"}


def test_checkpoints_that_do_not_fit(dataset):
    state = trained(stage(dataset), 24).state()
    with raises(ResumeError, "data stage 'first'", "16 consumed samples", "24, as conceptloader.json says"):
        stage(dataset, state, consumed=16)
    with raises(ResumeError, "data stage 'second'", "16 consumed samples"):
        stage(dataset, state, name="second", consumed=16)
    with raises(ResumeError, "checkpoint", "24 samples of this data stage, without"):
        stage(dataset, None, consumed=24)
    with raises(ResumeError, "checkpoint", "has read from web: 10,"):
        stage(dataset, None, earlier={"web": 640, "elsewhere": 64})


# Counts of tokens, of 64 a sample; what is found; what becomes of it.
PASTS = """
{consumed: 16, tokens: {/data/web: 640, /data/code: 384}} | (/data/web: 10, /data/code: 6) | (code: 3, web: 13) are
{consumed: 16, tokens: {web: 1024}} | read 16 samples of this data stage, | at sample 16 of
{earlier: {web: 1024}} | has read from web: 16, | at sample 0 of
"""


@pytest.mark.parametrize(("options", "found", "then"), cells(PASTS))
def test_a_past_that_nothing_tells_of_is_accepted_by_name_and_with_numbers(dataset, caplog, options, found, then):
    """What another loader has read has another order: what is left out and what may come again is said, both times."""
    options = yaml.safe_load(options)
    with raises(ResumeError, "checkpoint", found, fix=then):
        stage(dataset, None, **options)
    caplog.clear()
    trusting = {**dataset, "nanotron": {"allow_changed": ["unverified"]}}
    assert stage(trusting, None, **options).consumed == options.get("consumed", 0)
    (warning,) = caplog.messages
    assert found in warning
    assert then in warning


def test_data_that_the_run_cannot_take(dataset, tmp_path):
    """Before anything is trained: weights that no model would get, tokens that it has no row for, too many epochs."""
    path = write_config(write_datasets(tmp_path) / "data.yaml", outputs={"loss_weight": "weight"})
    with raises(ConfigError, "outputs.loss_weight", "model_inputs does not name"):
        build_dataloader(
            path, seq_len=16, micro_batch_size=2, global_batch_size=4, parallel_context=context(), input_pp_rank=0,
            output_pp_rank=0,
        )  # fmt: skip
    with raises(ConfigError, "datasets.code", "250 tokens", "at most the 128 of the model"):
        stage(dataset, vocabulary=128)
    members = dataset["datasets"]
    limited = {**dataset, "datasets": {**members, "math": {**members["math"], "max_epochs": 1}}}
    state = trained(stage(limited), 160).state()
    stage(limited, state, consumed=160, step=20, steps=25)  # the steps that are left
    with raises(ConfigError, "max_epochs"):
        stage(limited, state, consumed=160, step=20, steps=38)


def test_state_survives_the_file_and_damage_is_found(dataset, tmp_path):
    """Whatever its checksum."""
    state = trained(stage(dataset), 24).state()
    assert State.read(tmp_path) is None
    state.write(tmp_path)
    assert State.read(tmp_path) == state
    assert [path.name for path in tmp_path.iterdir()] == [NAME]
    whole = (tmp_path / NAME).read_text()
    sound = {key: value for key, value in json.loads(json.loads(whole)[KEY]).items() if key != "checksum"}
    changes = [{"data_stage": 3}, {"data_stage_start": 25}, {"data_stage_start": True}]
    edits = (("consumed_samples", "consumed"), ("42", "43"), ('version\\":1', 'version\\":9'))
    damaged = [whole[:100], *(whole.replace(*edit, 1) for edit in edits)]
    damaged += [json.dumps(as_leaf({**sound, **change})) for change in changes]
    for text in damaged:
        assert text != whole
        (tmp_path / NAME).write_text(text)
        with raises(ResumeError, NAME):
            State.read(tmp_path)


@pytest.mark.parametrize(("name", "loads"), [("pp", "load_optimizer"), ("tp", "load_lr_scheduler")])
def test_a_layout_that_nanotron_cannot_load(tmp_path, name, loads):
    (tmp_path / "optimizer").mkdir()
    (tmp_path / "optimizer" / "optimizer_config.json").write_text('{"parallelism": {"pp_size": "2", "tp_size": "2"}}')
    parts = {"load_optimizer": False, "load_lr_scheduler": False, loads: True}
    sizes = SimpleNamespace(**{"pp": 2, "tp": 2, name: 1})
    with raises(ResumeError, f"parallelism.{name}", "1", "2, at which", fix=f"set {name} to 2"):
        check_layout(tmp_path, SimpleNamespace(checkpoints=SimpleNamespace(**parts), parallelism=sizes))
    nothing = SimpleNamespace(load_optimizer=False, load_lr_scheduler=False)
    check_layout(tmp_path, SimpleNamespace(checkpoints=nothing, parallelism=sizes))


def test_a_dataset_travels_to_worker_processes(dataset):
    opened = stage(dataset)
    assert opened.__getitems__([1, 2]) is None  # a rank that needs no data
    opened.reader = open_reader(opened.run.blend)
    here, there = opened, pickle.loads(pickle.dumps(opened))
    a, b = here.__getitems__([5, 3]), there.__getitems__([5, 3])
    assert np.array_equal(a["input_ids"], b["input_ids"])


def test_a_stage_of_another_type_passes_the_state_on(dataset, tmp_path, monkeypatch):
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
def test_options_refuse_wrong_types(field):
    with pytest.raises(ConfigError, match=f"nanotron.{field}: found 3"):
        NanotronOptions.parse({field: 3}, "nanotron")


def test_stages_of_another_loader_before_this_one(dataset, caplog):
    assert stage(dataset, None, earlier={"/data/web": 640}).consumed == 0
    (warning,) = caplog.messages
    assert "another loader (/data/web: 10): this one begins at sample 0" in warning


def test_a_phase_within_a_step_is_told(dataset, caplog):
    stage({**dataset, "phases": [{"at": 16, "weights": {"web": 1}}]})
    assert not caplog.messages
    stage({**dataset, "phases": [{"at": 12, "weights": {"web": 1}}]})
    assert "at 12 is within step 1, which begins at sample 8" in caplog.text


MEMBERS = {"datasets": {"web": {"path": "web"}}}


@pytest.mark.parametrize("dataset", [MEMBERS, {"tpye": "conceptloader", **MEMBERS}, {"config": "mixture.yaml"}])
def test_a_section_of_ours_without_its_type_is_named(dataset):
    with raises(ConfigError, "data_stages[0].data.dataset", f"{', '.join(dataset)} and no type", fix="type: conceptl"):
        replace_in({"data_stages": [{"data": {"dataset": dataset}}]})


@pytest.mark.parametrize("dataset", [{"dataset_folder": "x"}, {"hf_dataset_or_datasets": "some/dataset"}])
def test_nanotrons_own_sections_stay_as_they_are(dataset):
    stages = {"data_stages": [{"data": {"dataset": dataset}}]}
    assert replace_in(stages) == stages


def test_a_made_up_name_is_never_looked_up():
    """Not even to decode: the name stands for no tokenizer, and a hub might have one of it."""

    def hub(*_):
        raise AssertionError("asked the hub")

    with raises(ConfigError, found="stands for none"):
        launch.Run().from_pretrained(hub, NO_TOKENIZER)
