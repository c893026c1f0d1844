import logging
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from conceptloader.config.phases import Phase, Ramp, Skip, planned, with_skips
from conceptloader.errors import ConfigError, ResumeError
from conceptloader.order.progress.resume import compare, reread_shares, resume, splice
from conceptloader.order.progress.spec import PackingRule
from conceptloader.order.segments import Segment
from tests.raises import raises

from .test_spec import PHASES, SKIP, member, spec

RAMPS = st.builds(Ramp, samples=st.integers(1, 90), shape=st.sampled_from(["linear", "cosine"]))
NAMES = ["code", "math", "web", "wiki"]


@st.composite
def specs(draw):
    weights = st.dictionaries(st.sampled_from(NAMES), st.integers(1, 5), min_size=1)
    phases = [Phase(at=0, weights=draw(weights))]
    for at in sorted(draw(st.sets(st.integers(1, 120), max_size=3))):
        phases.append(Phase(at=at, weights=draw(weights), ramp=draw(st.none() | RAMPS)))
    skips = [Skip(at=at, count=draw(st.integers(1, 9))) for at in draw(st.sets(st.integers(0, 120), max_size=2))]
    return spec(
        seed=draw(st.integers(0, 2)),
        block=draw(st.sampled_from([1, 8])),
        members={name: member(name, draw(st.integers(5, 30))) for name in NAMES},
        segments=with_skips(planned(phases), skips),
    )


def edits(now):
    """Strategy: `now` with one part exchanged for that of another spec, or one member's tokens exchanged."""
    parts = st.sampled_from(["seed", "block", "members", "segments"])
    exchanged = st.builds(lambda other, part: replace(now, **{part: getattr(other, part)}), specs(), parts)
    other_tokens = st.sampled_from(NAMES).map(
        lambda name: replace(now, members={**now.members, name: replace(now.members[name], stream_fingerprint="new")})
    )
    return exchanged | other_tokens


def read(a, samples):
    """What the samples are, by name: (dataset, tokens it is made of, sequence length, window)."""
    order = a.build()
    for dataset, _, window in zip(*(part.tolist() for part in order.sample_many(np.array(samples))), strict=True):
        m = a.members[order.names[dataset]]
        yield m.dataset, m.stream_fingerprint, m.seq_len, window


@given(st.data(), specs(), st.integers(0, 150))
def test_no_difference_means_the_same_past(data, saved, consumed):
    current = data.draw(edits(saved))
    same = list(read(saved, range(consumed))) == list(read(current, range(consumed)))
    if not compare(saved, current, consumed):
        assert same
    if not same:
        with pytest.raises(ResumeError):
            resume(saved, current, consumed)


@given(st.data(), specs(), st.integers(1, 150))
def test_edits_ahead_are_accepted(data, saved, consumed):
    """Phases, skips and members that come into play at the position or later may be anything."""
    other = data.draw(specs())
    drawn = saved.draws_before(consumed)
    current = replace(
        saved,
        members={name: (saved if name in drawn else other).members[name] for name in NAMES},
        segments=[
            *(one for one in saved.segments if one.at < consumed),
            Segment(at=consumed, weights={"wiki": 1}),
            *(replace(one, at=one.at + consumed) for one in other.segments if one.at),
            Segment(at=consumed, skip=3),
        ],
        quarantine={"web": "damaged"},
    )
    assert compare(saved, current, consumed) == []
    assert resume(saved, current, consumed) == current
    assert list(read(saved, range(consumed))) == list(read(current, range(consumed)))


def ramped(ramp):
    first = Phase(at=0, weights=PHASES[0].weights)
    return spec(segments=planned([first, Phase(at=200, weights={"web": 1, "code": 1}, ramp=ramp)]))


CODE = member("code", 37)
CHANGES = [
    ({"seed": 8}, ["seed"], "seed: saved 7, now 8"),
    ({"block": 1}, ["block"], "block: saved 8, now 1"),
    ({"extra": {"blend": "y"}}, ["extra.blend"], "extra.blend: saved None, now y"),
    ({"segments": PHASES}, ["skips"], r"skips: saved \[\(90, 11\)\], now \[\]"),
    (
        {"members": {"web": member("web", 99, token_range=(0, 1601)), "code": CODE}},
        ["datasets.web.windows"],
        "datasets.web.windows: saved 100, now 99",
    ),
    (
        {"members": {"web": member("web", stream_fingerprint="other"), "code": CODE}},
        ["datasets.web.stream_fingerprint"],
        "stream_fingerprint: saved tokens of web, now other",
    ),
    (
        {"members": {"web": member("web", packing=PackingRule(bins=8, overflow="split")), "code": CODE}},
        ["datasets.web.packing"],
        "datasets.web.packing: saved None, now",
    ),
    (
        {"segments": [Segment(at=0, weights={"web": 1, "code": 1}), SKIP]},
        ["phases.0.weights"],
        r"phases\.0\.weights\.code: saved 3/10, now 1/2\n.*weights\.web: saved 7/10, now 1/2",
    ),
    (
        {
            "members": {"web": member("web"), "math": member("math")},
            "segments": [Segment(at=0, weights={"web": 7, "math": 3}), SKIP],
        },
        ["datasets.code", "phases.0"],
        r"datasets\.code: saved present, now absent",
    ),
    (
        {"segments": [PHASES[0], SKIP, replace(PHASES[1], at=149)]},
        ["phases"],
        r"phases: saved \[0\], now \[0, 149\]",
    ),
]


@pytest.mark.parametrize(("changes", "allow", "text"), CHANGES)
def test_edits_behind_are_refused_with_both_values_unless_named(changes, allow, text, caplog):
    saved, current = spec(), spec(**changes)
    with pytest.raises(ResumeError, match=text) as refusal:
        resume(saved, current, 150)
    assert f'"{compare(saved, current, 150)[0].key}"' in str(refusal.value)
    assert resume(saved, current, 150, allow_changed=allow) == current
    assert "resuming with a changed past, as allowed" in caplog.text
    with pytest.raises(ResumeError):
        resume(saved, current, 150, allow_changed=["see", "datasets.we", "phases.1"])
    assert resume(saved, current, 0) == current


@pytest.mark.parametrize("changed", [None, Ramp(samples=61), Ramp(samples=60, shape="cosine")])
def test_a_ramp_is_part_of_the_past_once_it_has_begun(changed):
    saved, now = ramped(Ramp(samples=60)), ramped(changed)
    text = r"  phases\.200\.weights\.code: saved "
    for consumed in (201, 260, 300):
        with pytest.raises(ResumeError, match=text):
            resume(saved, now, consumed)
    assert resume(saved, now, 200) == now
    assert resume(saved, now, 230, allow_changed=["phases.200"]) == now


def test_changed_tracks_and_quarantine_only_warn(caplog):
    current = spec(members={"web": member("web", tracks_fingerprint="new"), "code": CODE}, quarantine={"web": "x"})
    with caplog.at_level(logging.WARNING):
        assert resume(spec(), current, 150) == current
    assert "datasets.web: its tracks have changed" in caplog.text
    assert "tokens are never read has changed" in caplog.text


def test_changed_columns_only_warn(caplog):
    """Of what both read: other ones, and datasets that come or go, are read as the configuration says."""
    saved = spec(columns={"ids": {"web": "1", "code": "2"}, "gone": {"web": "3"}, "equal": {"web": "4", "old": "5"}})
    current = spec(columns={"ids": {"code": "6", "new": "7"}, "equal": {"web": "4"}, "another": {"web": "8"}})
    with caplog.at_level(logging.WARNING):
        assert resume(saved, current, 150) == current
    assert [one.message.split(";")[0] for one in caplog.records] == [
        "outputs.columns.ids: dataset code has other values than at the checkpoint (saved 2, now 6)",
        "outputs.columns.ids: dataset web has other values than at the checkpoint (saved 1, now none)",
    ]


def test_reread_shares():
    saved = spec(segments=[Segment(at=0, weights={"web": 1})])
    shorter = replace(saved, members={"web": member("web", 200, 8), "code": member("code", 74, 8)})
    half = replace(saved, members={"web": member("web", 100, 8, token_range=(800, 1601)), "code": CODE})
    apart = replace(saved, members={"web": member("web", 100, 8, token_range=(1601, 2402)), "code": CODE})
    assert reread_shares(saved, shorter, 30) == pytest.approx({"web": 0.3})
    assert reread_shares(saved, half, 130) == pytest.approx({"web": 0.3})
    assert reread_shares(saved, half, 30) == reread_shares(saved, shorter, 30)
    assert reread_shares(saved, shorter, 100) == {}
    assert reread_shares(saved, apart, 30) == {}
    assert resume(saved, shorter, 100).base == 100  # at the border of an epoch nothing needs to be allowed
    with raises(ResumeError, found="seq_len: saved 16, now 8, mid-epoch, which reads 30.0% of web again"):
        resume(saved, shorter, 30)
    assert resume(saved, shorter, 30, allow_changed=["seq_len"]).members.keys() == {"web", "web@8", "code"}


def test_only_what_is_drawn_again_is_read_again(caplog):
    """Now, or in a later phase, or in one that is added after the change."""
    saved = spec(segments=[Segment(at=0, weights={"web": 1})])
    shorter = {"members": {"web": member("web", 200, 8), "code": member("code", 74, 8)}}
    left = replace(saved, **shorter, segments=[*saved.segments, Segment(at=30, weights={"code": 1})])
    changed = resume(saved, left, 30)
    assert "weights set live for web would read 30.0% of it again" in caplog.text
    assert resume(changed, left, 40).hash == changed.hash
    back = replace(left, segments=[*left.segments, Segment(at=50, weights={"web": 1})])
    for before, consumed in ((saved, 30), (changed, 40)):
        with raises(ResumeError, found="now 8, mid-epoch, which reads 30.0% of web again"):
            resume(before, back, consumed)
    accepted = resume(changed, back, 40, allow_changed=["seq_len"])
    assert resume(accepted, back, 45).hash == accepted.hash


def test_only_shuffled_orders_follow_each_other():
    sequential = spec(order="sequential", segments=())
    with raises(ConfigError, found="sequential, after shuffled"):
        splice(spec(), sequential, 10, 10)
    with raises(ResumeError, found="order: saved shuffled, now sequential"):
        resume(spec(), sequential, 10)
    assert resume(sequential, sequential, 10) == sequential
    with raises(ResumeError, found="datasets.web.windows: saved 100, now 99"):
        resume(sequential, replace(sequential, members={"web": member("web", 99), "code": CODE}), 10)
    assert splice(spec(), sequential, 0, 0) == sequential
