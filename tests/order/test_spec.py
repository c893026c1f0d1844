import json
from copy import deepcopy
from dataclasses import replace
from functools import reduce
from operator import getitem

import pytest
import yaml

from conceptloader.config.phases import Phase, Ramp, planned
from conceptloader.errors import ConfigError, ResumeError
from conceptloader.order.progress.spec import VERSIONS, Member, OrderSpec
from conceptloader.order.segments import Segment
from tests.raises import cells

PHASES = [Segment(at=0, weights={"web": 0.7, "code": 0.3}), Segment(at=189, weights={"web": 1, "code": 1})]
SKIP = Segment(at=90, skip=11)


def member(name, windows=100, seq_len=16, **changes):
    values = {
        "dataset": name,
        "seq_len": seq_len,
        "windows": windows,
        "stream_fingerprint": f"tokens of {name}",
        "token_range": (0, windows * (seq_len or 1) + 1),
        "tracks_fingerprint": f"tracks of {name}",
    }
    return Member(**{**values, **changes})


def spec(**changes):
    values = {
        "seed": 7,
        "block": 8,
        "members": {"web": member("web"), "code": member("code", 37)},
        "segments": [*PHASES, SKIP],
    }
    return OrderSpec(**{**values, **changes})


def test_canonical():
    a, web, code = spec(), {"web": 2.5}, {"code": 2.5}
    turned = [replace(PHASES[0], weights={"code": 30, "web": 70}), replace(PHASES[1], weights=code | web)]
    assert spec(members=dict(reversed(a.members.items())), segments=[SKIP, *turned]).hash == a.hash
    assert a.segments[0].weights == {"code": 3, "web": 7}
    assert len({a.hash, spec(seed=8).hash, spec(segments=PHASES).hash, spec(quarantine={"web": "x"}).hash}) == 4


@pytest.mark.parametrize(
    ("changes", "text"),
    [
        ({"order": "random"}, "order: found 'random'"),
        ({"segments": ()}, "phases: found 0 segments with order shuffled"),
        ({"order": "sequential"}, "segments with order shuffled, no segments"),
        ({"segments": [Segment(at=0, weights={"wbe": 1})]}, r"phases\.0\.weights\.wbe: found an unknown dataset 'wbe'"),
        ({"segments": [Segment(at=5, weights={"web": 1})]}, r"phases: found weights at the samples \[5\]"),
        ({"forgotten": "x"}, "segments: found none that was set live"),
        ({"base": -1}, "base: found -1"),
    ],
)
def test_bad_arguments(changes, text):
    with pytest.raises(ConfigError, match=text):
        spec(**changes)


@pytest.mark.parametrize(("key", "known"), list(VERSIONS.items()))
def test_other_versions_are_refused(key, known):
    for other in (known + 1, 0, True, None):
        with pytest.raises(ResumeError, match=f"{key}: found {other}, expected {known}; resume with the release"):
            OrderSpec.from_dict({**spec().to_dict(), key: other})


def test_a_ramp_is_saved_as_segments():
    phases = [Phase(at=one.at, weights=one.weights) for one in PHASES]
    ramped = spec(segments=[*planned([phases[0], replace(phases[1], ramp=Ramp(samples=50))]), SKIP])
    assert spec().hash == "27aa0a6783730ceb00c54ef58dbcf38f"  # stays so
    assert [one.at for one in ramped.segments] == [0, 90, *range(189, 240)]
    again = OrderSpec.from_dict(json.loads(json.dumps(ramped.to_dict())))
    assert (again, again.hash) == (ramped, ramped.hash)


DAMAGE = """
spec_version | '1'
members | []
unknown | 1
members.web.token_range | [1]
members.web.token_range | [0, '1']
members.web.stream_fingerprint | 5
members.web.more | 1
members.web.packing | {bins: 8}
members.web.packing | {bins: 8, overflow: split, version: 1}
members.web.packing | {bins: 8, overflow: grow}
members. | web
segments.0.end | 5
segments.0.weights | {web: true}
segments.1.skip | true
exclude | {web: [[1]]}
forgotten | 5
quarantine | {web: 5}
segments.0.weights | {web: '1'}
block | {}
seed | '1'
quarantine | 5
"""


@pytest.mark.parametrize(("path", "value"), cells(DAMAGE))
def test_damaged_specs_are_refused(path, value):
    data = spec().to_dict()
    *above, name = path.split(".")
    place = reduce(getitem, (int(key) if key.isdigit() else key for key in above), data)
    place[name] = data["members"]["web"] if value == "web" else yaml.safe_load(value)
    with pytest.raises(ResumeError, match="saved order spec: "):
        OrderSpec.from_dict(data)


def test_no_field_of_a_spec_may_be_missing():
    whole = spec().to_dict()
    for path in ((), ("members", "web"), ("segments", 0), ("segments", 1)):
        for name in reduce(getitem, path, whole):
            data = deepcopy(whole)
            del reduce(getitem, path, data)[name]
            with pytest.raises(ResumeError, match=f"saved order spec: .*{name}"):
                OrderSpec.from_dict(data)
