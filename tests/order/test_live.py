"""Weights set live thousands of times: what is saved and logged stays small, and the order is as if all were known."""

import json
import random
from itertools import takewhile
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from conceptloader.config.phases import Phase, Ramp
from conceptloader.config.phases import planned as planned_segments
from conceptloader.errors import ConfigError, FormatError, ResumeError
from conceptloader.order.mixture import Mixture
from conceptloader.order.partition import Partition
from conceptloader.order.progress.resume import resume
from conceptloader.order.progress.runlog import FILE_NAME, RunLog, RunStart
from conceptloader.order.progress.spec import Member, OrderSpec
from conceptloader.order.progress.state import OrderState
from conceptloader.order.schedule import BatchSchedule
from conceptloader.order.segments import Segment, in_force
from tests.order.plain import block_order, order_phases
from tests.raises import raises
from tests.scale import scaled

SIZES = {"a": 7, "b": 50, "c": 2000, "d": 1, "e": 333}
RAMPS = {301: Ramp(samples=200), 901: Ramp(samples=64, shape="cosine"), 1101: Ramp(samples=500)}
PLANNED = {0: {"a": 1, "b": 2, "c": 5}, 700: {"c": 1, "d": 1}, 9001: {"e": 1, "b": 1}}
BLOCK = 8
NONE: dict[int, Ramp] = {}


def planned(phases: Any = PLANNED, ramps: Any = NONE, **options: Any) -> OrderSpec:
    members = {
        name: Member(dataset=name, seq_len=16, windows=n, stream_fingerprint=name, token_range=(0, 17 * n))
        for name, n in SIZES.items()
    }
    listed = [Phase(at=at, weights=weights, ramp=ramps.get(at)) for at, weights in phases.items()]
    return OrderSpec(**{"seed": 3, "block": BLOCK, "members": members, "segments": planned_segments(listed), **options})


class Simulated:
    """A run that sets weights, is saved, killed and resumed; beside it all of its phases, in a list."""

    def __init__(self, folder: Path, spec: OrderSpec, seed: int) -> None:
        self.log, self.config, self.random = RunLog(folder), spec, random.Random(seed)
        self.spec, self.position, self.phases = spec, 0, {one.at: dict(one.weights) for one in spec.segments}
        self.live: set[int] = set()
        self.order = spec.build()
        self.saved: list[tuple[int, dict[str, str], dict[int, dict[str, float]]]] = []
        self.changes = 0
        self.launch()

    def launch(self) -> None:
        schedule = BatchSchedule(((0, 1),), self.position, self.position)
        partition = Partition(micro_batch_size=1, dp_size=1)
        self.log.append(RunStart.of(self.spec, schedule, partition, 16), self.spec)

    def set_weights(self, most_ahead: int) -> None:
        self.position += self.random.randint(1, 9)
        at = self.position + self.random.randint(0, most_ahead)
        if at in self.kept(at) or (self.spec.live and at <= self.spec.live[-1].at):
            return
        names = self.random.sample(sorted(SIZES), self.random.randint(1, len(SIZES)))
        weights = {name: self.random.choice([1, 0.25, 3, round(self.random.random() + 0.01, 6)]) for name in names}
        self.put(at, weights)

    def kept(self, at: int) -> dict[int, Any]:
        """The phases if weights are set live at a sample, which end a ramp there."""
        after = [one for one in self.config.segments if one.at >= at]
        ended = {one.at for one in takewhile(lambda one: one.ramp, after)}
        return {start: weights for start, weights in self.phases.items() if start not in ended}

    def put(self, at: int, weights: dict[str, Any]) -> None:
        segment = Segment(at=at, weights=weights, why=f"change {self.changes}")
        self.spec = self.spec.cut(self.position).with_live(segment, self.order)
        self.order = self.spec.build()
        self.log.append_weights(self.spec)
        self.phases = {**self.kept(at), at: dict(weights)}
        self.live.add(at)
        self.changes += 1

    def save(self) -> None:
        state = OrderState(spec=self.spec.cut(self.position), consumed=self.position)
        self.saved.append((self.position, state.leaf(), dict(self.phases)))

    def restart(self, saved: int) -> None:
        """From a checkpoint: what was set after it never was."""
        self.position, leaf, phases = self.saved[saved]
        self.phases = dict(phases)
        state = OrderState.read(leaf, "state")
        self.spec = resume(state.spec, self.config, self.position)
        assert self.spec.hash == state.spec.hash
        self.order = self.spec.build()
        self.launch()


def compare(run: Simulated, log: RunLog, samples: int) -> None:
    """All of the run's order, from its log, with the list of its phases in plain Python."""
    spec = log.spec_at(log.history.launches[-1].start)
    assert spec.hash == run.spec.hash
    assert not spec.forgotten
    order = spec.build()
    names = sorted(SIZES)
    exact = [(one.at, one.weights) for one in planned(dict(sorted(run.phases.items()))).segments]
    phases = order_phases(exact, names, 3, BLOCK)
    expected = []
    for phase, stop in zip(phases, [*(p.start for p in phases[1:]), samples], strict=True):
        for first in range(phase.start, min(stop, samples), BLOCK):
            block = block_order(phase, (first - phase.start) // BLOCK, BLOCK)[: min(stop, samples) - first]
            expected += [(phase.members[leaf], phase.base[phase.members[leaf]] + draw) for leaf, draw in block]
    datasets, draws = order.locate_many(np.arange(samples))
    assert list(zip(datasets.tolist(), draws.tolist(), strict=True)) == expected
    found, epochs, windows = order.sample_many(np.arange(samples))
    for dataset, name in enumerate(names):
        for epoch in np.unique(epochs[found == dataset]).tolist():
            chosen = (found == dataset) & (epochs == epoch)
            assert order.indices_of_windows(dataset, epoch, windows[chosen]).tolist() == np.flatnonzero(chosen).tolist()
        assert order.counts(samples)[dataset] == sum(k == dataset for k, _ in expected), name
    for at in run.random.sample(range(samples), 50):
        counted = np.bincount([dataset for dataset, _ in expected[:at]], minlength=len(names))
        assert order.counts(at) == counted.tolist()
        assert order.index_of_window(*order.sample(at)) == at


@pytest.mark.slow
@pytest.mark.parametrize(("changes", "most_ahead", "ramps"), [
    (scaled(500, 10_000), 0, {}), (scaled(200, 300), 40, {}), (scaled(100, 400), 3, RAMPS),
    (scaled(120, 400), 100, RAMPS),
])  # fmt: skip
def test_an_order_of_many_changes_killed_and_resumed(
    tmp_path: Path, changes: int, most_ahead: int, ramps: dict[int, Ramp]
) -> None:
    more = {301: {"a": 1, "e": 1}, 901: {"b": 1}, 1101: {"c": 1, "d": 3}} if ramps else {}
    run = Simulated(tmp_path, planned(dict(sorted({**PLANNED, **more}.items())), ramps), seed=changes)
    sizes = []
    while run.changes < changes:
        run.set_weights(most_ahead)
        if run.random.random() < 0.05:
            run.save()
            sizes.append(len(json.dumps(run.saved[-1][1])))
        if run.saved and run.random.random() < 0.01:
            run.restart(run.random.choice([-1, -1, -3]) if len(run.saved) > 3 else -1)
    assert max(sizes[-20:]) < max(sizes[:20]) + 200 * (1 + most_ahead)
    compare(run, RunLog(tmp_path), run.position + 100)
    spec, log = run.spec.cut(run.position), RunLog(tmp_path)
    whole = log.spec_at(log.starts[-1])
    assert spec.hash == whole.hash == OrderSpec.from_dict(json.loads(json.dumps(spec.to_dict()))).hash
    starts = dict.fromkeys(one.at for one in in_force(whole.segments))
    assert list(starts) == sorted(run.phases)
    assert {one.at for one in whole.live} == run.phases.keys() & run.live
    said = [int(one.why.split()[1]) for one in whole.live]
    assert said == sorted(said)


def live(changes: int, spec: OrderSpec | None = None) -> tuple[OrderSpec, Mixture, int]:
    """(a spec that was cut at its last change, its order, samples consumed)."""
    spec, at = spec or planned(), 0
    for k in range(changes):
        at += 11
        spec = spec.with_live(Segment(at=at, weights={"a": k + 1, "c": 5}), spec.build())
    spec = spec.cut(at)
    return spec, spec.build(), at


def test_what_is_forgotten_is_refused() -> None:
    spec, order, at = live(4)
    assert (spec.begins, order.begin, at) == (33, 33, 44)
    assert order.sample(33)[2] >= 0
    for ask in (
        lambda: order.sample(32),
        lambda: order.counts(32),
        lambda: order.index_of_window(0, 0, order.sample_many([44])[2][0] * 0),
        lambda: order.indices_of_windows(0, 0, [0]),
        lambda: spec.cut(33),
    ):
        with raises(ConfigError, "order", fix="run log"):
            ask()
    with raises(ResumeError, expected="a position after sample 33"):
        resume(spec, planned(), 33)
    assert resume(spec, planned(), 34).hash == spec.hash


def test_what_the_configuration_may_not_change_any_more() -> None:
    spec, _, at = live(80)
    assert at == 880 > 700
    same = resume(spec, planned(), at)
    assert same == spec
    later = planned({**PLANNED, 9001: {"a": 1}})
    assert resume(spec, later, at).segments[-1].weights == {"a": 1}
    for changed, key in [
        (planned({**PLANNED, 700: {"c": 1, "d": 2}}), "phases.700.weights.c"),
        (planned({0: PLANNED[0], 701: PLANNED[700]}), "phases"),
        (planned({0: PLANNED[0], 9001: PLANNED[9001]}), "phases"),
        (planned(seed=4), "seed"),
        (planned(block=16), "block"),
    ]:
        with raises(ResumeError, found=key):
            resume(spec, changed, at)
        with raises(ResumeError, key.split(".")[0], expected="weights were set live since"):
            resume(spec, changed, at, allow_changed=["phases", "seed", "block"])
    stage = resume(spec, planned({0: {"e": 1}}, seed=3), at, new_stage=True)
    assert stage.build().sample(at)[0] == sorted(SIZES).index("e")
    assert stage.draws_before(at) == spec.draws_before(at)
    again = resume(stage, planned({0: {"e": 1}}, seed=3), at + 5)
    assert again == stage


def test_weights_set_ahead_of_the_position_where_the_configuration_changes_before_them() -> None:
    """Their draws are counted again."""
    spec = planned()
    spec = spec.with_live(Segment(at=800, weights={"a": 1}), spec.build())
    edited = planned({**PLANNED, 650: {"e": 1}})
    resumed = resume(spec, edited, 600)
    assert resumed == edited.with_live(Segment(at=800, weights={"a": 1}), edited.build())
    assert resumed.live != spec.live
    order = resumed.build()
    assert order.counts(900) == [
        before + 100 * (name == "a") for name, before in zip(order.names, order.counts(800), strict=True)
    ]


def test_a_log_that_lacks_weights(tmp_path: Path) -> None:
    run = Simulated(tmp_path, planned(), seed=2)
    for _ in range(6):
        run.set_weights(0)
    path = tmp_path / FILE_NAME
    lines = path.read_text().splitlines(keepends=True)
    path.write_text("".join(lines[:4] + lines[5:]))
    log = RunLog(tmp_path)
    spec = log.spec_at(log.starts[0])
    assert spec.forgotten
    assert [one.why for one in spec.live] == ["change 3", "change 4", "change 5"]
    assert spec.hash == run.spec.hash
    path.write_text("".join(lines[:4]) + lines[4].replace('"why"', '"whim"') + "".join(lines[5:]))
    with raises(FormatError, "line 5"):
        RunLog(tmp_path)
