"""Weights set live thousands of times: what is saved and logged stays small, and the order is as if all were known."""

import json

from conceptloader.config.phases import Phase
from conceptloader.config.phases import planned as planned_segments
from conceptloader.errors import ConfigError, FormatError, ResumeError
from conceptloader.order.partition import Partition
from conceptloader.order.progress.resume import resume
from conceptloader.order.progress.runlog import FILE_NAME, RunLog, RunStart
from conceptloader.order.progress.spec import Member, OrderSpec
from conceptloader.order.progress.state import OrderState
from conceptloader.order.schedule import BatchSchedule
from conceptloader.order.segments import Segment
from tests.raises import raises

SIZES = {"a": 7, "b": 50, "c": 2000, "d": 1, "e": 333}
PLANNED = {0: {"a": 1, "b": 2, "c": 5}, 700: {"c": 1, "d": 1}, 9001: {"e": 1, "b": 1}}
BLOCK = 8


def planned(phases=PLANNED, **options):
    members = {
        name: Member(dataset=name, seq_len=16, windows=n, stream_fingerprint=name, token_range=(0, 17 * n))
        for name, n in SIZES.items()
    }
    listed = [Phase(at=at, weights=weights) for at, weights in phases.items()]
    return OrderSpec(**{"seed": 3, "block": BLOCK, "members": members, "segments": planned_segments(listed), **options})


def live(changes, spec=None):
    """(a spec that was cut at its last change, its order, samples consumed)."""
    spec, at = spec or planned(), 0
    for k in range(changes):
        at += 11
        spec = spec.with_live(Segment(at=at, weights={"a": k + 1, "c": 5}), spec.build())
    spec = spec.cut(at)
    return spec, spec.build(), at


def test_what_is_forgotten_is_refused():
    spec, order, at = live(4)
    assert (spec.begins, order.begin, at) == (33, 33, 44)
    assert order.sample(33)[2] >= 0
    for ask in (
        lambda: order.sample(32),
        lambda: order.counts(32),
        lambda: order.index_of_window(0, 0, 0),
        lambda: order.indices_of_windows(0, 0, [0]),
        lambda: spec.cut(33),
    ):
        with raises(ConfigError, "order", fix="run log"):
            ask()
    with raises(ConfigError, "weights", "where a phase of the configuration starts"):
        planned().with_live(Segment(at=700, weights={"a": 1}), planned().build())
    with raises(ResumeError, expected="a position after sample 33"):
        resume(spec, planned(), 33)
    assert resume(spec, planned(), 34).hash == spec.hash


def test_what_the_configuration_may_not_change_any_more():
    spec, _, at = live(80)
    assert at == 880 > 700
    assert len(json.dumps(OrderState(spec=spec, consumed=at).leaf())) < 3000, "a state grows with what is set"
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


def test_a_log_that_lacks_weights(tmp_path):
    log, spec = RunLog(tmp_path), planned()
    log.append(RunStart.of(spec, BatchSchedule.constant(1), Partition(micro_batch_size=1, dp_size=1), 16), spec)
    for k in range(6):
        spec = spec.cut(11 * k).with_live(Segment(at=11 * k + 5, weights={"a": k + 1}, why=f"change {k}"), spec.build())
        log.append_weights(spec)
    path = tmp_path / FILE_NAME
    lines = path.read_text().splitlines(keepends=True)
    path.write_text("".join(lines[:4] + lines[5:]))
    log = RunLog(tmp_path)
    found = log.spec_at(log.starts[0])
    assert found.forgotten
    assert [one.why for one in found.live] == ["change 3", "change 4", "change 5"]
    assert found.hash == spec.hash
    path.write_text("".join(lines[:4]) + lines[4].replace('"why"', '"whim"') + "".join(lines[5:]))
    with raises(FormatError, "line 5"):
        RunLog(tmp_path)
