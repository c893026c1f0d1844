import json
from copy import deepcopy
from dataclasses import replace
from functools import reduce
from operator import getitem

import numpy as np
import pytest

from conceptloader.errors import ConfigError, ResumeError
from conceptloader.order.mixture import Mixture
from conceptloader.order.phases import Phase, Ramp
from conceptloader.order.progress.spec import VERSIONS, Member, OrderSpec
from conceptloader.order.sequential import Sequential
from conceptloader.order.skips import Skip
from tests.raises import raises


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
        "phases": [Phase(start=0, weights={"web": 0.7, "code": 0.3}), Phase(start=200, weights={"web": 1, "code": 1})],
        "skips": [Skip(at=90, count=11)],
    }
    return OrderSpec(**{**values, **changes})


def test_canonical():
    a = spec()
    b = spec(
        members=dict(reversed(a.members.items())),
        phases=[Phase(start=0, weights={"code": 30, "web": 70}), Phase(start=200, weights={"code": 2.5, "web": 2.5})],
    )
    assert a.hash == b.hash
    assert a.phases[0].weights == {"code": 3, "web": 7}
    assert len({a.hash, spec(seed=8).hash, spec(skips=()).hash, spec(quarantine={"web": "x"}).hash}) == 4


def test_json_round_trip():
    a = spec(quarantine={"web": "x"}, extra={"blend": "y"}, base=3)
    again = OrderSpec.from_dict(json.loads(json.dumps(a.to_dict())))
    assert again == a
    assert again.hash == a.hash


@pytest.mark.parametrize(
    ("starts", "found"),
    [((5,), "starts [5]"), ((1, 2), ""), ((0, 0), "starts [0, 0]"), ((0, 5, 5), ""), ((0, 0.5), "")],
)
def test_starts_of_phases_are_refused_as_by_a_mixture(starts, found):
    phases = [Phase(start=start, weights={"web": 1}) for start in starts]
    with raises(ConfigError, "phases", found) as of_spec:
        spec(phases=phases)
    with pytest.raises(ConfigError) as of_mixture:
        Mixture(sizes=[100], names=["web"], phases=phases)
    assert str(of_spec.value) == str(of_mixture.value)


def test_phases_and_starts_of_numpy_are_as_good_as_plain_ones():
    phases = [Phase(start=np.int64(start), weights={"web": 1}) for start in (0, 200)]
    assert spec(phases=phases).hash == spec(phases=[replace(p, start=int(p.start)) for p in phases]).hash


def test_other_orders():
    sequential = spec(order="sequential", phases=())
    assert isinstance(sequential.build(), Sequential)
    assert sequential.draws_before(5) == {"code": 37, "web": 100}
    with raises(ConfigError, fix="with the adapter"):
        spec(order="megatron", phases=()).build()


def test_draws_before_equals_counting():
    a = spec()
    for consumed in (1, 89, 90, 91, 150, 300):
        skipped = replace(a, skips=()).build()
        names = [skipped.names[k] for k in skipped.sample_many(np.arange(a.decided(consumed)))[0]]
        assert a.draws_before(consumed) == {n: names.count(n) for n in ("code", "web") if n in names}


@pytest.mark.parametrize(
    ("changes", "text"),
    [
        ({"order": "random"}, "order: found 'random'"),
        ({"phases": ()}, "phases: found 0 phases with order shuffled"),
        ({"order": "sequential"}, "phases with order shuffled, and none"),
        ({"phases": [Phase(start=0, weights={"wbe": 1})]}, r"phases\.0\.weights: found no datasets named \['wbe'\]"),
        ({"phases": [Phase(start=0, weights={"web": -1})]}, r"phases\.0\.weights\.web: found -1"),
        ({"base": -1}, "base: found -1"),
    ],
)
def test_bad_arguments(changes, text):
    with pytest.raises(ConfigError, match=text):
        spec(**changes)


def test_bad_member():
    with raises(ConfigError, "datasets.web.windows", "-1"):
        member("web", windows=-1, token_range=(0, 1))


@pytest.mark.parametrize(("key", "known"), list(VERSIONS.items()))
def test_other_versions_are_refused(key, known):
    for other in (known + 1, 0, True, None):
        with pytest.raises(ResumeError, match=f"{key}: found {other}, expected {known}; resume with the release"):
            OrderSpec.from_dict({**spec().to_dict(), key: other})


def test_a_ramp_is_saved_as_phases():
    first, second = spec().phases
    ramped = spec(phases=[first, replace(second, ramp=Ramp(samples=50))])
    assert spec().hash == "27aa0a6783730ceb00c54ef58dbcf38f"  # stays so
    assert "ramp" not in json.dumps(spec().to_dict())
    assert [phase.start for phase in ramped.phases] == [0, *range(200, 251)]
    assert "ramp" not in json.dumps(ramped.to_dict()["phases"])
    assert ramped.to_dict()["ramps"] == [{"first": 200, "last": 250, "ramp": {"samples": 50, "shape": "linear"}}]
    again = OrderSpec.from_dict(json.loads(json.dumps(ramped.to_dict())))
    assert (again, again.hash) == (ramped, ramped.hash)
    assert len({spec().hash, ramped.hash, spec(phases=[first, replace(second, ramp=Ramp(samples=51))]).hash}) == 3
    with raises(ResumeError, "saved order spec: order_version", "2"):
        OrderSpec.from_dict({**spec().to_dict(), "order_version": 2})


@pytest.mark.parametrize(
    "damage",
    [
        lambda d: d.update(spec_version="1"),
        lambda d: d.update(members=[]),
        lambda d: d.update(unknown=1),
        lambda d: d["members"]["web"].update(token_range=[1]),
        lambda d: d["members"]["web"].update(token_range=[0, "1"]),
        lambda d: d["members"]["web"].update(stream_fingerprint=5),
        lambda d: d["members"]["web"].update(more=1),
        lambda d: d["members"]["web"].update(packing={"bins": 8}),
        lambda d: d["members"]["web"].update(packing={"bins": 8, "overflow": "split", "version": 1}),
        lambda d: d["members"]["web"].update(packing={"bins": 8, "overflow": "grow"}),
        lambda d: d["members"].update({"": d["members"]["web"]}),
        lambda d: d["phases"][0].update(end=5),
        lambda d: d["phases"][0].update(weights={"web": True}),
        lambda d: d["skips"][0].update(more=1),
        lambda d: d.update(exclude={"web": [[1]]}),
        lambda d: d.update(live=[0.0]),
        lambda d: d.update(quarantine={"web": 5}),
        lambda d: d["phases"][0].update(weights={"web": "1"}),
        lambda d: d.update(block={}),
        lambda d: d.update(seed="1"),
        lambda d: d.update(quarantine=5),
    ],
)
def test_damaged_specs_are_refused(damage):
    data = spec().to_dict()
    damage(data)
    with pytest.raises(ResumeError, match="saved order spec: "):
        OrderSpec.from_dict(data)


def test_no_field_of_a_spec_may_be_missing():
    whole = spec().to_dict()
    for path in ((), ("members", "web"), ("phases", 0), ("skips", 0)):
        for name in reduce(getitem, path, whole):
            data = deepcopy(whole)
            del reduce(getitem, path, data)[name]
            with pytest.raises(ResumeError, match=f"saved order spec: .*{name}"):
                OrderSpec.from_dict(data)


def test_not_a_spec():
    with raises(ResumeError, expected="an object"):
        OrderSpec.from_dict([])
