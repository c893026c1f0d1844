"""A run whose weights move: resumed in the middle, on other ranks, with weights set there, and asked afterwards."""

import json
from pathlib import Path
from typing import Any

import pytest

import conceptloader as cl
from conceptloader.cli import main
from conceptloader.errors import ConfigError, ResumeError
from conceptloader.testing import random_documents, write_dataset
from tests.raises import raises

BEFORE, AFTER = {"a": 9, "b": 1}, {"b": 1, "c": 3}
RAMP = {"samples": 120, "shape": "cosine"}


@pytest.fixture
def config(tmp_path: Path) -> dict[str, Any]:
    datasets = {
        name: {"path": write_dataset(tmp_path / name, random_documents(60, seed=k, prefix=name))}
        for k, name in enumerate("abc")
    }
    phases = [{"at": 0, "weights": BEFORE}, {"at": 40, "weights": AFTER, "ramp": RAMP}]
    return {"seq_len": 16, "datasets": datasets, "phases": phases, "block": 8, "loader": {"prefetch_batches": 2}}


def make(config: Any, dp_size: int = 1, dp_rank: int = 0, micro: int = 4) -> cl.Loader:
    return cl.make_dataloader(config, dp_size=dp_size, dp_rank=dp_rank, micro_batch_size=micro, num_samples=240)


def rows(loaders: list[cl.Loader], count: int) -> dict[int, tuple[int, list[int]]]:
    """Sample -> its dataset and tokens, of so many batches of each rank."""
    found = {}
    for loader in loaders:
        for _, batch in zip(range(count), loader, strict=False):
            parts = (batch[key].tolist() for key in ("sample_index", "dataset_id", "input_ids"))
            found.update({sample: (dataset, tokens) for sample, dataset, tokens in zip(*parts, strict=True)})
    return found


def test_resumed_in_the_middle_on_other_ranks(config: Any) -> None:
    whole = rows([make(config)], 60)
    assert sorted(whole) == list(range(240))
    assert {whole[t][0] for t in range(40)} == {0, 1}
    assert {whole[t][0] for t in range(160, 240)} == {1, 2}
    loader = make(config)
    first = rows([loader], 22)
    state = json.loads(json.dumps(loader.state_dict()))
    assert len(first) == 88
    ranks = [make(config, 3, rank, 2) for rank in range(3)]
    for rank in ranks:
        rank.load_state_dict(state)
    rest = rows(ranks, 25)
    assert {**first, **rest} == {t: whole[t] for t in range(88 + 150)}


def test_a_changed_ramp_is_refused_once_it_has_begun(config: Any) -> None:
    loader = make(config)
    rows([loader], 22)
    longer = make({**config, "phases": [config["phases"][0], {**config["phases"][1], "ramp": {"samples": 150}}]})
    with raises(ResumeError, found="phases.40.weights.a: saved 0.8998"):
        longer.load_state_dict(loader.state_dict())
    longer.load_state_dict(loader.state_dict_at(40))


def test_weights_set_in_the_middle_end_it(config: Any) -> None:
    loader = make(config)
    batches = iter(loader)
    for _ in range(22):
        next(batches)
    at = loader.set_weights({"a": 1})
    assert at == 88
    found = rows([loader], 30)
    assert {dataset for sample, (dataset, _) in found.items() if sample >= at} == {0}
    again = make(config)
    again.load_state_dict(loader.state_dict_at(92))
    assert rows([again], 20) == {t: rows_of for t, rows_of in found.items() if 92 <= t < 172}


def test_metrics_name_the_weights_in_force(config: Any) -> None:
    seen: list[cl.metrics.StepMetrics] = []
    end = cl.metrics.on_step(seen.append)
    rows([make(config)], 60)
    end()
    weights = {one.consumed_samples: one.weights for one in seen}
    assert weights[40] == {"a": 0.9, "b": 0.1}
    assert weights[44] == pytest.approx({"a": 0.9, "b": 0.1, "c": 0}, abs=0.01)
    assert weights[100] == pytest.approx({"a": 0.45, "b": 0.175, "c": 0.375}, abs=0.02)  # the middle
    assert weights[164] == weights[240] == {"b": 0.25, "c": 0.75}
    assert [one.samples for one in seen][-1] == dict(zip("abc", make(config).blend.order.counts(240), strict=True))


def test_what_is_shown_of_it(config: Any, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    loader = make(config)
    rows([loader], 22)
    (tmp_path / "state.json").write_text(json.dumps(loader.state_dict()))
    assert main(["trace", "--checkpoint", str(tmp_path / "state.json")]) == 0
    assert "from sample 160: b 0.25, c 0.75 (end of a ramp)" in capsys.readouterr().out
    (tmp_path / "run.json").write_text(json.dumps(config))
    assert main(["trace", str(tmp_path / "run.json"), "--global-batch-size", "4", "--step", "25", "--json"]) == 0
    said, *_ = json.loads(capsys.readouterr().out)["weights"]
    assert said["weights"] == pytest.approx({"a": 0.45, "b": 0.175, "c": 0.375}, abs=0.03)  # in the middle


def test_temperature_applies_to_both_ends(config: Any) -> None:
    even = cl.open_blend({**config, "temperature": 2}).spec.segments
    assert even[0].weights["a"] / even[0].weights["b"] == pytest.approx(3)
    ends = [even[0].shares, even[-1].shares]
    assert even[32].shares == pytest.approx({name: sum(one.get(name, 0) for one in ends) / 2 for name in "abc"})
    assert even[-1].weights["c"] / even[-1].weights["b"] == pytest.approx(3**0.5)


def test_more_weights_than_states_have_room_for(config: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("conceptloader.blend.blend.MAX_WEIGHTS", 2 + 63 * 3 + 2)
    cl.open_blend(config)
    monkeypatch.setattr("conceptloader.blend.blend.MAX_WEIGHTS", 192)
    with raises(ConfigError, "phases", "193 weights in all", "at most 192"):
        cl.open_blend(config)
    monkeypatch.setattr("conceptloader.blend.blend.MAX_WEIGHTS", 3)
    cl.open_blend({**config, "phases": [config["phases"][0], {"at": 40, "weights": AFTER}]})
