"""The section `mixing`: real trainings whose mixture follows their losses, resumed, refused and compared."""

import itertools
import json
import logging
import random
from dataclasses import replace
from pathlib import Path

import pytest
import yaml

import conceptloader as cl
from conceptloader.errors import ConfigError, ResumeError
from conceptloader.order.progress.state import OrderState
from conceptloader.run.mixing import Controller
from tests.mixing.training import BATCH, Run, configuration
from tests.raises import cells, raises
from tests.ranks.launch import forked

USERS = "conceptloader.testing.controllers:Greedy"
KINDS = [
    {"odm": {}},
    {"odm": {"smoothing": 0.5, "warmup_steps": 2}},
    {"doremi": {"reference": {"easy": 5.0, "hard": 3.0, "middle": 6.0}, "step_size": 0.1, "smoothing": 0.1}},
    {USERS: {"times": 3}},
]
named = pytest.mark.parametrize("mixing", KINDS, ids=lambda mixing: next(iter(mixing)))


@named
def test_resumed_at_any_step_it_trains_the_same(mixing, tmp_path):
    config = configuration(tmp_path, mixing)
    whole = Run(config).steps(12)
    assert len({share for _, share in whole.samples}) == 3
    run = Run(config)
    samples = []
    for stop in (1, 2, 5, 9, 12):
        run.steps(stop - len(samples) // BATCH)
        samples += run.samples
        expected, found = (json.loads(one.saved[1]) for one in (whole, run))
        run = Run(config, run.saved)
    assert samples == whole.samples
    assert found == expected
    assert run.mixing["steps"] == 12


def test_the_recipe_of_the_cookbook(tmp_path, monkeypatch):
    """ADO, from the page as it is."""
    page = (Path(__file__).parents[2] / "docs/cookbook.md").read_text()
    code = next(block for block in page.split("```python\n") if block.startswith("class ADO")).split("```")[0]
    (tmp_path / "ado.py").write_text("import conceptloader as cl\nimport numpy as np\n" + code)
    monkeypatch.syspath_prepend(str(tmp_path))
    config = configuration(tmp_path, {"ado:ADO": {"every": 3}})
    whole, run = Run(config).steps(24), Run(config).steps(10)
    assert run.loader.blend.spec.live
    again = Run(config, run.saved).steps(14)
    assert run.samples + again.samples == whole.samples
    assert again.saved[1] == whole.saved[1]


def weights(run):
    return {name: int(weight) for name, weight in run.loader.blend.order.segments[-1].weights.items()}


def test_a_file_is_read_again(tmp_path, caplog):
    file = tmp_path / "weights.yaml"
    file.write_text("{easy: 1, hard: 1, middle: 1}")
    config = configuration(tmp_path, {"file": {"path": "weights.yaml"}})
    (tmp_path / "run.yaml").write_text(yaml.safe_dump(config))
    run = Run(tmp_path / "run.yaml").steps(3)
    assert run.loader.blend.spec.live == []
    assert str(tmp_path) not in json.dumps([run.loader.blend.facts(), run.loader.state_dict()])
    file.write_text("{easy: 1, hard: 2, middle: 5}")
    run.steps(1)
    assert weights(run) == {"easy": 1, "hard": 1, "middle": 1}  # it may have been half written: what stays counts
    run.steps(1)
    assert weights(run) == {"easy": 1, "hard": 2, "middle": 5}
    for wrong in ("{easy: 1, hard: 2, mid", "{easy: 1, hard: 2}", "{easy: 1, hard: 2, middle: 0}", "", "- 1",
                  "{easy: 1, hard: 2, middle: 1, more: 1}", "{easy: 1, hard: 2, middle: .nan}", None):  # fmt: skip
        caplog.clear()
        file.unlink() if wrong is None else file.write_text(wrong)
        before = run.saved
        run.steps(3)
        assert weights(run) == {"easy": 1, "hard": 2, "middle": 5}
        errors = [record.getMessage() for record in caplog.records if record.levelno == logging.ERROR]
        assert len(errors) == 1, "once, not in each step"
        assert str(file) in errors[0]
    file.write_text("{easy: 3, hard: 2, middle: 5}")
    assert weights(Run(tmp_path / "run.yaml", before).steps(2)) == {"easy": 3, "hard": 2, "middle": 5}


class Watching(Controller):
    """A user's controller that follows no losses."""

    learns = False

    def __init__(self, weights, state=None, *, path):
        self.names, self.path = list(weights), Path(path)

    def look(self):
        return self.path.read_text()

    def observe(self, step, seen):
        return {name: 1 + len(seen) * (name == "hard") for name in self.names}

    def state(self):
        return {}


@pytest.mark.parametrize("options", ["note.txt", {"path": "note.txt"}])
def test_a_controller_that_needs_no_losses(options, tmp_path):
    """Its path is that of the YAML, and no part of what ranks compare or what a state has."""
    (tmp_path / "note.txt").write_text("four")
    config = configuration(tmp_path, {"tests.mixing.test_loader:Watching": options})
    (tmp_path / "run.yaml").write_text(yaml.safe_dump(config))
    loader = cl.batches(tmp_path / "run.yaml", micro_batch_size=BATCH)
    next(iter(loader))
    loader.observe()
    assert dict(loader.blend.order.segments[-1].weights) == {"easy": 1, "hard": 5, "middle": 1}
    assert str(tmp_path) not in json.dumps([loader.blend.facts(), loader.state_dict()])


POOL = [
    *("{easy: 1, hard: 2, middle: 5}", "{easy: 4, hard: 2, middle: 1}", "{easy: 1, hard: 2, middle: 5.0}"),
    *("{easy: 1, hard: 60, middle: 1}", "{easy: 1, hard: 20, middle: 2}"),  # which max_epochs allows late
    *("{easy: 1, hard: 2, mid", "{easy: 1}", None),
]


@pytest.mark.parametrize("seed", range(24, 36))
def test_a_file_that_changes_whenever_and_runs_resumed_whenever(seed, tmp_path):
    """Of the same content at the same steps: the samples and the state of the run in one piece."""
    draw, steps = random.Random(seed), 30
    file = tmp_path / "weights.yaml"
    config = configuration(tmp_path, {"file": str(file)})
    config["datasets"]["hard"]["max_epochs"] = 0.25
    contents = [draw.choice(POOL)]
    for _ in range(steps):
        contents.append(contents[-1] if draw.random() < 0.6 else draw.choice(POOL))

    def run(stops):
        samples = []
        state, changes = None, set()
        for begin, end in itertools.pairwise((0, *sorted(stops), steps)):
            loader = cl.batches(config, micro_batch_size=4, global_batch_size=8, num_samples=8 * steps)
            if state is not None:
                loader.load_state_dict(state)
            batches = iter(loader)
            for step in range(begin, end):
                for batch in itertools.islice(batches, 2):
                    samples += zip(batch["sample_index"].tolist(), batch["dataset_id"].tolist(), strict=True)
                text = contents[step]
                file.unlink(missing_ok=True) if text is None else file.write_text(text)
                loader.observe()
                changes.add(loader.blend.order.segments[-1].at)
            state = loader.state_dict()
            loader.close()
        return samples, state or {}, len(changes)

    whole = run(())
    assert whole[2] > 1
    assert run(draw.sample(range(1, steps), draw.randint(1, 6))) == whole


def test_what_is_learned_cannot_break_max_epochs(tmp_path, caplog):
    """The last weights that keep it stay, and it is said."""
    config = configuration(tmp_path, {USERS: {"times": 18}})
    config["datasets"]["hard"]["max_epochs"] = 0.25

    class Limited(Run):
        def make(self, config):
            return cl.make_dataloader(config, micro_batch_size=BATCH, num_samples=240)

    order = Limited(config).steps(20).loader.blend.order
    assert "datasets.hard.max_epochs" in caplog.text
    drawn = dict(zip(order.names, order.counts(240), strict=True))["hard"]
    assert drawn <= 0.25 * dict(zip(order.names, order.sizes, strict=True))["hard"]


def test_calls_that_are_wrong(tmp_path):
    run = Run(configuration(tmp_path, {"odm": {}}), micro=4).steps(1)
    before = run.saved[1]
    with raises(ConfigError, "observe", "a second call"):
        run.loader.observe({"easy": 1.0})
    next(iter(run.loader))
    with raises(ConfigError, "observe", "no losses"):
        run.loader.observe()
    assert run.mixing == json.loads(json.loads(before)["conceptloader"])["mixing"]
    with raises(ConfigError, "mixing.odm", "without a call of observe"):
        Run(configuration(tmp_path, {"odm": {}}), micro=4).steps(40, observe=False)
    plain = configuration(tmp_path, None)
    with raises(ConfigError, "observe", "no section"):
        Run(plain).steps(1).loader.observe()
    assert "mixing" not in Run(plain).loader.state_dict()["conceptloader"]


def test_a_state_that_is_saved_too_early_is_said(tmp_path, caplog):
    run = Run(configuration(tmp_path, {"odm": {}})).steps(1)
    assert run.loader.state_dict()
    assert not caplog.records
    run.steps(1, observe=False)
    run.loader.state_dict()
    assert "call observe first" in caplog.text


def test_another_controller_is_refused_by_name(tmp_path):
    saved = Run(configuration(tmp_path, {"odm": {}})).steps(3).saved
    other = configuration(tmp_path, {USERS: {}})
    with raises(ResumeError, "mixing", USERS, "odm, as saved", fix="allow_changed"):
        Run(other, saved)
    with raises(ResumeError, "mixing", "no controller", "odm, as saved"):
        Run(configuration(tmp_path, None), saved)
    run = Run(other, saved, allow_changed=["mixing"])
    assert run.mixing == {"kind": USERS, "steps": 0, "state": {}, "options": {}}
    assert Run(configuration(tmp_path, None), saved, allow_changed=["mixing"]).loader.consumed_samples == 3 * BATCH
    begins = Run(configuration(tmp_path, {"odm": {}}), Run(configuration(tmp_path, None)).saved)
    assert begins.mixing["steps"] == 0


CHANGED = yaml.safe_load("""
- saved: {odm: {}}
  now: {odm: {every: 2, smoothing: 0.5}}
  said: ["mixing.odm.every: saved 1, now 2", "mixing.odm.smoothing: saved 0.9, now 0.5"]
- saved: {odm: {}}
  now: {odm: {every: 1, smoothing: 0.9}}
  said: []
- saved: {doremi: {}}
  now: {doremi: {reference: {easy: 1, hard: 2, middle: 3}}}
  said: ['mixing.doremi.reference: saved nothing, now {"easy": 1, "hard": 2, "middle": 3}']
- saved: {"conceptloader.testing.controllers:Greedy": {times: 3}}
  now: {"conceptloader.testing.controllers:Greedy": {}}
  said: ["mixing.conceptloader.testing.controllers:Greedy.times: saved 3, now nothing"]
""")


@pytest.mark.parametrize("case", CHANGED)
def test_changed_options_are_said(case, tmp_path, caplog):
    state = Run(configuration(tmp_path, case["saved"])).steps(2).saved
    Run(configuration(tmp_path, case["now"]), state)
    assert caplog.messages == [f"{one}, from here on" for one in case["said"]]


@pytest.mark.parametrize("wrong", [{"seen": 3, "given": ""}, {"seen": ""}, [], 3, None])
def test_wrong_states(wrong, tmp_path):
    (tmp_path / "weights.yaml").write_text("{easy: 1, hard: 2, middle: 3}")
    config = configuration(tmp_path, {"file": str(tmp_path / "weights.yaml")})
    time, saved = Run(config).steps(2).saved
    state = OrderState.read(json.loads(saved), "")
    mixing = {**state.more["mixing"], "state": wrong}
    if wrong is None:
        del mixing["options"]
    with raises(ResumeError):
        Run(config, (time, json.dumps(replace(state, more={**state.more, "mixing": mixing}).leaf())))


@named
def test_losses_that_do_not_come_any_more(mixing, tmp_path, caplog):
    """Are said once, and are an error before the run has learned nothing for long."""
    loader = cl.batches(configuration(tmp_path, mixing), micro_batch_size=BATCH)
    given = {"easy": 1.0, "hard": 2.0, "middle": 3.0}
    kind, batches = next(iter(mixing)), iter(loader)
    for losses in (given, given, given, {}, given, *[{}] * 15, given, *[{}] * 15):
        next(batches)
        loader.observe(losses)
    assert caplog.messages == [f"mixing.{kind}: step 3 has no losses; the weights stay as they are"]
    next(batches)
    with raises(ConfigError, "observe", "no losses in 16 steps, up to step 36", kind):
        loader.observe({})


WRONG = """
{} | mixing
{odm: {}, doremi: {}} | mixing
{omd: {}} | mixing.omd
{odm: {smothing: 1}} | mixing.odm.smothing
{odm: 3} | mixing.odm
{doremi: {reference: {easy: 1}}} | mixing.doremi.reference
{file: {}} | mixing.file
{file: ''} | mixing.file
{file: {path: 3}} | mixing.file
{file: {path: a, every: 3}} | mixing.file
{odm: weights.yaml} | mixing.odm.path
{'conceptloader.testing.controllers:Greedier': {}} | mixing.conceptloader.testing.controllers:Greedier
{'tests.mixing.nowhere:Greedy': {}} | mixing.tests.mixing.nowhere:Greedy
{'tests.mixing.training:Run': {}} | mixing.tests.mixing.training:Run
"""


@pytest.mark.parametrize(("mixing", "path"), cells(WRONG))
def test_sections_that_are_wrong(mixing, path, tmp_path):
    mixing = yaml.safe_load(mixing)
    with raises(ConfigError) as caught:
        Run(configuration(tmp_path, mixing))
    assert caught.value.path == path


def test_what_does_not_go_with_it(tmp_path):
    config = configuration(tmp_path, {"odm": {}})
    with raises(ConfigError, "phases"):
        cl.open_blend({**config, "phases": [{"at": 9, "weights": {"easy": 1}}]})
    with raises(ConfigError, "outputs.dataset_id"):
        cl.open_blend({**config, "outputs": {"dataset_id": False}})
    unweighted = {name: {"path": entry["path"]} for name, entry in config["datasets"].items()}
    with raises(ConfigError, "mixing"):
        cl.open_blend({**config, "datasets": unweighted, "order": "sequential"})
    with raises(ConfigError, "mixing", "SampleDataset"):
        cl.SampleDataset(config)[0]


def _rank(rank, config, folder):
    import torch.distributed as dist

    dist.init_process_group("gloo")
    file = Path(folder, f"of-rank-{rank}.yaml")  # the first rank's is read, wherever others have theirs
    file.write_text(f"{{easy: {rank + 2}, hard: 1, middle: 1}}")
    followed = {**config, "mixing": {"file": str(file)}}
    loader = cl.make_dataloader(followed, dp_rank=rank, dp_size=2, micro_batch_size=BATCH // 2, check_ranks=True)
    batches = iter(loader)
    for _ in range(4):
        next(batches)
        loader.observe()
    assert dict(loader.blend.order.segments[-1].weights) == {"easy": 2, "hard": 1, "middle": 1}
    states = [None, None]
    dist.all_gather_object(states, loader.state_dict())
    assert states[0] == states[1]
    dist.destroy_process_group()


@pytest.mark.slow
def test_the_file_of_the_first_rank_holds_for_all(tmp_path):
    forked(_rank, 2, configuration(tmp_path, None), tmp_path)
