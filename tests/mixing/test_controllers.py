"""Controllers of mixtures: the weights of the authors' code, states, and losses that are none."""

import json
import math
from pathlib import Path

import pytest
import yaml

import conceptloader as cl
from conceptloader.errors import ConfigError, ResumeError
from conceptloader.run.mixing.controller import MINIMUM, check_losses
from conceptloader.run.mixing.doremi import DoReMi
from conceptloader.run.mixing.odm import ODM
from conceptloader.testing import random_documents, write_dataset
from conceptloader.testing.controllers import Greedy
from tests.raises import cells

RECORDED = json.loads(Path(__file__).with_name("recorded.json").read_text())
KINDS = {"doremi": DoReMi, "odm": ODM}
EVEN = {"a": 1, "b": 1, "c": 2}


def made(case, state=None):
    return KINDS[case["kind"]](case["start"], state, **case["options"])


@pytest.mark.parametrize("name", RECORDED)
def test_weights_are_those_of_the_authors_code(name):
    """recorded.json is what their functions returned. Resumed at any step they are the same."""
    case = RECORDED[name]
    controller, whole, weights, changes = made(case), made(case), {}, 0
    for number, step in enumerate(case["steps"]):
        controller = made(case, json.loads(json.dumps(controller.state())))
        new = controller.observe(number, step["losses"])
        assert (new, controller.state()) == (whole.observe(number, step["losses"]), whole.state())
        weights, changes = new or weights, changes + (new is not None)
        assert (weights or case["start"]) == pytest.approx(step["weights"], abs=1e-6)
        assert all(one == round(one, 6) >= MINIMUM for one in weights.values())
        if "average" in step:
            assert controller.average == pytest.approx(step["average"], abs=1e-6)
    assert any(len(step["losses"]) < len(case["start"]) for step in case["steps"]), "no dataset is ever without a loss"
    assert changes > 10


@pytest.mark.parametrize(
    "losses", [{"a": math.nan}, {"a": 1.0, "b": math.inf}, {"a": 900.0}, {"a": True}, {"a": 1.0, "d": 1.0}]
)
def test_losses_that_are_none(losses):
    with pytest.raises(ConfigError) as caught:
        check_losses(losses, EVEN)
    assert caught.value.path == f"losses.{list(losses)[-1]}"


def test_no_dataset_is_lost():
    """However long its loss stays below: it could never come back."""
    doremi = DoReMi({f"d{k}": 1 for k in range(300)}, reference={f"d{k}": 0.0 for k in range(300)})
    odm = ODM({"a": 1, "b": 1})
    for step in range(50):
        weights = doremi.observe(step, {f"d{k}": 5.0 if k == 7 else 0.0 for k in range(300)})
    assert min(weights.values()) == MINIMUM
    assert weights["d7"] > 0.99
    for step in range(10_000):
        weights = odm.observe(step, {"a": 20.0, "b": 0.1})
    assert weights["b"] > 0.005


OPTIONS = """
doremi | {reference: {a: 1, b: 1}} | doremi.reference
doremi | {step_size: 0} | doremi.step_size
doremi | {smoothing: 0} | doremi.smoothing
odm | {smoothing: 1} | odm.smoothing
odm | {smothing: 0.5} | odm.smothing
odm | {every: 0} | odm.every
"""


@pytest.mark.parametrize(("kind", "options", "path"), cells(OPTIONS))
def test_options_that_are_wrong(kind, options, path):
    with pytest.raises(ConfigError) as caught:
        KINDS[kind](EVEN, **yaml.safe_load(options))
    assert caught.value.path == path


@pytest.mark.parametrize("kind", [DoReMi, ODM])
def test_states_of_others(kind):
    state = kind({"a": 1, "b": 1}).state()
    with pytest.raises(ResumeError):
        kind(EVEN, state)
    other = next(each for each in (DoReMi, ODM) if each is not kind)
    with pytest.raises(ResumeError):
        other({"a": 1, "b": 1}, state)
    changed = [{key: "two"} for key in state]
    changed += [{"datasets": {**state["datasets"], "a": row}} for row in ([], [math.nan] * 9, "1")]
    changed += [
        {"datasets": {**state["datasets"], "a": [*state["datasets"]["a"][1:], value]}} for value in (True, None)
    ]
    for change in changed:
        with pytest.raises(ResumeError):
            kind({"a": 1, "b": 1}, {**state, **change})


class Wrong(Greedy):
    """As its option says."""

    def __init__(self, weights, state=None, *, returns=None, keeps=False):
        super().__init__(weights, state)
        self.returns, self.keeps = returns, keeps

    def observe(self, step, seen):
        return self.returns

    def state(self):
        return {**super().state(), **({"it": self} if self.keeps else {})}


NOT = """
{returns: {a: 1.0}} | the weight of b: found nothing
{returns: {a: 1.0, b: -1.0}} | the weight of b
{returns: {a: 1.0, b: x}} | the weight of b
{returns: {a: 1.0, b: 1.0, c: 1.0}} | the weight of c
{retruns: null} | retruns
{keeps: true} | state: found Object of type Wrong
"""


@pytest.mark.parametrize(("options", "words"), cells(NOT))
def test_a_controller_that_is_wrong(tmp_path, options, words):
    options = yaml.safe_load(options)
    for name in "ab":
        write_dataset(tmp_path / name, random_documents(30))
    datasets = {name: {"path": str(tmp_path / name), "weight": 1} for name in "ab"}
    config = {"seq_len": 8, "datasets": datasets, "mixing": {f"{__name__}:Wrong": options}}

    def train():
        loader = cl.batches(config, micro_batch_size=2)
        next(iter(loader))
        loader.observe({"a": 1.0, "b": 1.0})
        loader.state_dict()

    with pytest.raises(ConfigError) as raised:
        train()
    assert words in str(raised.value)
    assert str(raised.value).startswith("mixing.")
