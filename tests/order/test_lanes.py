"""Order version 2: mixtures in lanes against their definition, their inverse, and what they are for."""

import hashlib
import json
import os
import subprocess
import sys
from collections import OrderedDict
from collections.abc import Iterator
from fractions import Fraction
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import conceptloader as cl
from conceptloader.base.compiled.kernel import Kernel
from conceptloader.errors import ConfigError, ResumeError
from conceptloader.order import kernels, permutation, reference
from conceptloader.order.many import lane_kernels
from conceptloader.order.many.lanes import LaneMixture
from conceptloader.order.progress.resume import reread_shares, resume
from conceptloader.order.progress.spec import OrderSpec
from conceptloader.order.reference import Lanes
from tests.order.test_spec import member, spec
from tests.spec.node import ask

GOLDEN = json.loads((Path(__file__).parent / "golden_v2.json").read_text())
LANES = st.builds(Lanes, count=st.integers(1, 6), windows=st.integers(2, 9), open=st.integers(1, 4))


@st.composite
def lane_mixtures(draw: st.DrawFn, skips: bool = True) -> LaneMixture:
    lanes = draw(LANES)
    names = draw(st.lists(st.text("abcdef", min_size=1, max_size=3), min_size=1, max_size=4, unique=True))
    need = lanes.count * lanes.windows
    plain = tuple(name for name in names if draw(st.booleans()))
    sizes = [
        draw(st.integers(1, 9) if name in plain else st.integers(need, need + 99) | st.integers(need, 2**40))
        for name in names
    ]
    starts = sorted({0, *draw(st.lists(st.integers(1, 400), max_size=3))})
    phases = []
    for start in starts:
        members = draw(st.lists(st.sampled_from(names), min_size=1, unique=True))
        phases.append(cl.Phase(start=start, weights={m: draw(st.integers(1, 100)) for m in members}))
    jumps = st.builds(cl.Skip, at=st.integers(0, 400), count=st.integers(1, 90))
    return LaneMixture(
        lanes,
        plain=plain,
        sizes=sizes,
        names=names,
        phases=phases,
        seed=draw(st.integers(-5, 5)),
        block=draw(st.sampled_from([1, 2, 5, 64])),
        skips=draw(st.lists(jumps, max_size=2)) if skips else (),
    )


def by_reference(m: LaneMixture, ts: list[int]) -> Iterator[tuple[int, int, int, int]]:
    """(dataset, draw, epoch, window) by the plain functions of reference.py, from the arguments alone."""
    given = [(p.start, reference.smallest_integers({k: Fraction(w) for k, w in p.weights.items()})) for p in m._phases]
    phases = reference.order_phases(given, m.names, m.seed, m.block)
    count = m.lanes.count
    every = [reference.lane_phases(phases, m.seed, m.block, lane, count) for lane in range(count)]
    for t in ts:
        place, lane = divmod(reference.global_index(t, [(skip.at, skip.count) for skip in m.skips.skips]), count)
        dataset, draw = reference.locate(every[lane], m.block, place)
        assert reference.position(every[lane], m.block, dataset, draw) == place
        draw, size = draw * count + lane, m.sizes[dataset]
        key, plain = reference.dataset_key(m.seed, m.names[dataset]), m.names[dataset] in m.plain
        epoch, i = divmod(draw, size)
        of_epoch = reference.epoch_key(key, epoch)
        window = reference.permute(i, size, of_epoch) if plain else reference.lane_permute(i, size, of_epoch, m.lanes)
        assert plain or reference.lane_unpermute(window, size, of_epoch, m.lanes) == i
        yield dataset, draw, epoch, window


SAMPLES = st.lists(st.integers(0, 600) | st.integers(0, 2**50), min_size=1, max_size=8)
few = settings(max_examples=30)


@few
@given(m=lane_mixtures(), ts=SAMPLES)
def test_arrays_compiled_or_not_equal_the_reference(m: LaneMixture, ts: list[int]) -> None:
    permutation.load_kernels()
    compiled = *m.locate_many(ts), *m.sample_many(ts)[1:]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(permutation, "_loaded", False)
        plain = *m.locate_many(ts), *m.sample_many(ts)[1:]
    for found in (compiled, plain):
        assert list(by_reference(m, ts)) == list(zip(*(column.tolist() for column in found), strict=True))


@few
@given(m=lane_mixtures(), ts=SAMPLES)
def test_inverses(m: LaneMixture, ts: list[int]) -> None:
    columns = *m.locate_many(ts), *m.sample_many(ts)[1:]
    for t, dataset, draw, epoch, window in zip(ts, *(column.tolist() for column in columns), strict=True):
        assert m.index_of(dataset, draw) == t
        assert m.index_of_window(dataset, epoch, window) == t
        assert m.indices_of_windows(dataset, epoch, [window]).tolist() == [t]


@few
@given(lanes=LANES, more=st.integers(0, 200), key=st.integers(0, 2**64 - 1))
def test_an_epoch_is_every_window_once(lanes: Lanes, more: int, key: int) -> None:
    n = lanes.count * lanes.windows + more
    windows = [reference.lane_permute(i, n, key, lanes) for i in range(n)]
    assert sorted(windows) == list(range(n))
    assert [reference.lane_unpermute(window, n, key, lanes) for window in windows] == list(range(n))


@few
@given(m=lane_mixtures(skips=False), until=st.integers(0, 500))
def test_every_draw_of_a_lane_in_order_counted_at_every_prefix(m: LaneMixture, until: int) -> None:
    datasets, draws = m.locate_many(np.arange(until))
    seen = np.zeros((m.lanes.count, len(m.sizes)), np.int64)
    for g, (dataset, draw) in enumerate(zip(datasets.tolist(), draws.tolist(), strict=True)):
        lane = g % m.lanes.count
        assert draw == seen[lane, dataset] * m.lanes.count + lane
        seen[lane, dataset] += 1
    assert m.counts(until) == seen.sum(0).tolist()
    highest = [int(draws[datasets == k].max(initial=0)) + int(k in datasets) for k in range(len(m.sizes))]
    assert m.drawn(until) == highest


@few
@given(m=lane_mixtures(skips=False), cut=st.integers(401, 700))
def test_edits_ahead_change_nothing_behind(m: LaneMixture, cut: int) -> None:
    phases = [cl.Phase(start=p.start, weights=p.weights) for p in m._phases]
    phases.append(cl.Phase(start=cut, weights={"newcomer": 3, m.names[0]: 1}))
    changed = LaneMixture(
        m.lanes, plain=(*m.plain, "newcomer"), sizes=[*m.sizes, 5], names=[*m.names, "newcomer"], seed=m.seed,
        block=m.block, phases=phases, skips=[cl.Skip(at=cut, count=7)],
    )  # fmt: skip
    for before, after in zip(m.sample_many(np.arange(cut)), changed.sample_many(np.arange(cut)), strict=True):
        assert np.array_equal(before, after)


def big(count: int, **changes: Any) -> LaneMixture:
    arguments = {"sizes": [400_000, 100_000, 50], "names": ["web", "code", "tiny"], "weights": [0.79, 0.2, 0.01]}
    lanes = Lanes(count=count, windows=64, open=8)
    return LaneMixture(lanes, plain=("tiny",), seed=7, **{**arguments, **changes})


def test_proportions_of_each_lane_and_of_all() -> None:
    """A lane is within its bound wherever its blocks end; the sum, whose bound is that of all lanes, is far nearer."""
    m, weights = big(64), np.array([0.79, 0.2, 0.01])
    worst_lane, worst = 0.0, 0.0
    for blocks in (1, 2, 5, 17, 100):
        place = blocks * m.block
        counts = m._lane_counts(place * 64).astype(float)
        worst_lane = max(worst_lane, float(np.abs(counts - place * weights).max()))
        worst = max(worst, float(np.abs(counts.sum(0) - 64 * place * weights).max()))
    assert worst_lane <= m.deviation
    assert worst <= 2 * np.sqrt(64)  # the errors of lanes are unrelated


def reads(m: LaneMixture, ranks: int, micro_batch: int, batches: int, room: int) -> float:
    """Requests a window of rank 1 that remembers the `room` blocks which it used last."""
    part = cl.Partition(micro_batch_size=micro_batch, dp_size=ranks)
    held: OrderedDict[Any, None] = OrderedDict()
    misses = 0
    samples = part.samples(0, batches * part.group, 1).ravel()
    for dataset, epoch, window in zip(*(column.tolist() for column in m.sample_many(samples)), strict=True):
        block = dataset, epoch, m.io_block(dataset, window)
        misses += block not in held
        held[block] = None
        held.move_to_end(block)
        if len(held) > room:
            held.popitem(last=False)
    return misses / len(samples)


def test_a_rank_that_owns_lanes_reads_every_block_once() -> None:
    m = big(32, sizes=[400_000, 100_000], names=["web", "code"], weights=[0.8, 0.2])
    of_a_lane = 8 * 2 * 5 // 4  # open blocks of two datasets, and a quarter for those that the next ones take over from
    assert reads(m, ranks=8, micro_batch=4, batches=4000, room=4 * of_a_lane) <= 0.02
    assert reads(m, ranks=4, micro_batch=4, batches=8000, room=8 * of_a_lane) <= 0.02, "half of the ranks"
    assert reads(m, ranks=6, micro_batch=4, batches=4000, room=16 * of_a_lane) <= 0.1, "lanes go round the ranks"
    assert m.misfit(cl.Partition(micro_batch_size=4, dp_size=8)) is None
    assert m.misfit(cl.Partition(micro_batch_size=2, dp_size=8, scheme="strided")) is None
    assert "no multiple of micro_batch_size * dp_size = 24" in str(
        m.misfit(cl.Partition(micro_batch_size=4, dp_size=6))
    )


def test_lanes_open_their_blocks_at_different_times() -> None:
    key, lanes = reference.epoch_key(5, 0), Lanes(count=64)
    firsts = {reference.opened(0, 10_000, reference.epoch_key(key, lane), lanes)[1] for lane in range(64)}
    assert firsts == {64 * k for k in range(1, 9)}


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"sizes": [2047, 10**6, 5]}, r"datasets\.web: found 2,047 windows, expected at least 2,048, a block of 64"),
        ({"lanes": Lanes(count=0)}, "lanes: count: found 0"),
        ({"lanes": Lanes(count=32, windows=1)}, "lanes: windows: found 1, expected"),
        ({"lanes": Lanes(count=32, open=0)}, "lanes: open: found 0"),
        ({"max_epochs": [None, None, 0.5]}, "max_epochs"),
    ],
)  # fmt: skip
def test_bad_arguments(changes: dict[str, Any], message: str) -> None:
    lanes = changes.pop("lanes", Lanes(count=32))
    arguments = {"sizes": [2048, 10**6, 5], "names": ["web", "code", "tiny"], **changes}
    with pytest.raises(ConfigError, match=message):
        LaneMixture(lanes, plain=("tiny",), **arguments).check_run(100)


def test_no_window_is_read_more_often_than_max_epochs_says() -> None:
    """Lanes may be apart: the one that is ahead counts."""
    m = big(32, sizes=[2100, 2100], names=["a", "b"], weights=[1, 1], max_epochs=[1, None])
    allowed = max(n for n in range(3900, 4400, 4) if not _refused(m, n))
    datasets, epochs, _ = m.sample_many(np.arange(allowed))
    assert not epochs[datasets == 0].any()
    datasets, epochs, _ = m.sample_many(np.arange(allowed + 4))
    assert epochs[datasets == 0].any()


def _refused(m: LaneMixture, samples: int) -> bool:
    try:
        m.check_run(samples)
    except ConfigError:
        return True
    return False


def laned(**changes: Any) -> OrderSpec:
    members = {"web": member("web", 400), "code": member("code", 37, one_by_one=True)}
    return spec(**{"lanes": Lanes(count=8, windows=16, open=2), "members": members, **changes})


def test_a_spec_with_lanes_comes_back_and_those_without_are_as_they_were() -> None:
    plain, data = spec().to_dict(), laned().to_dict()
    assert (plain["spec_version"], plain["order_version"], "lanes" in plain) == (1, 1, False)
    assert (data["spec_version"], data["order_version"]) == (1, 2)
    again = OrderSpec.from_dict(json.loads(json.dumps(data)))
    assert again == laned()
    assert again.hash == laned().hash != spec().hash
    assert isinstance(again.build(), LaneMixture)
    assert again.build().plain == ("code",)
    for damage in ({"order_version": 1}, {"lanes": {"windows": 8}}, {"lanes": None}):
        with pytest.raises(ResumeError, match="damaged"):
            OrderSpec.from_dict({**data, **damage})


def test_lanes_go_on_as_they_were() -> None:
    assert resume(laned(), laned(), 60) == laned()
    with pytest.raises(ResumeError, match="lanes: saved None, now Lanes"):
        resume(spec(members=laned().members), laned(), 60)
    with pytest.raises(ResumeError, match=r"lanes: saved Lanes\(count=8, windows=16, open=2\), now .*count=4"):
        resume(laned(), laned(lanes=Lanes(count=4, windows=16, open=2)), 60)
    with pytest.raises(ResumeError, match=r"datasets\.code\.one_by_one: saved True, now None"):
        resume(laned(), laned(members={"web": member("web", 400), "code": member("code", 370)}), 60)
    assert resume(spec(members=laned().members), laned(), 0) == laned(), "nothing was trained yet"


def test_where_an_epoch_ends_is_not_where_all_lanes_end_it() -> None:
    one = {"web": member("web", 128)}
    saved = laned(members=one, phases=[cl.Phase(start=0, weights={"web": 1})], skips=())
    other = laned(members={"web": member("web", 256, seq_len=8)}, phases=saved.phases, skips=())
    assert saved.draws_before(128) == {"web": 128}
    assert 0 < reread_shares(saved, other, 128)["web"] < 0.01


def golden_lanes(block: int = 64) -> LaneMixture:
    return LaneMixture(
        Lanes(count=12, windows=16, open=4),
        plain=("tiny",),
        sizes=[1000, 12 * 16, 10**9, 5],
        names=["books", "code", "web", "tiny"],
        seed=1234,
        block=block,
        phases=[
            cl.Phase(start=0, weights={"web": 0.7, "code": 0.2, "books": 0.1}),
            cl.Phase(start=1000, weights={"web": 0.5, "code": 0.3, "tiny": 0.01, "books": 0.1}),
        ],
        skips=[cl.Skip(at=1500, count=100)],
    )


def columns(m: LaneMixture, samples: Any) -> list[np.ndarray]:
    return [*m.locate_many(samples), *m.sample_many(samples)[1:]]


def test_golden_vectors() -> None:
    assert [part.tolist() for part in columns(golden_lanes(), np.arange(40))] == GOLDEN["first"]
    samples = np.concatenate([np.arange(20_000), np.arange(2**40, 2**40 + 500)])
    for block, expected in GOLDEN["digests"].items():
        parts = columns(golden_lanes(int(block)), samples)
        assert hashlib.sha256(b"".join(a.astype("<u8").tobytes() for a in parts)).hexdigest() == expected


@settings(max_examples=5)
@given(cases=st.lists(lane_mixtures(), min_size=1, max_size=6))
def test_the_page_in_javascript(cases: list[LaneMixture]) -> None:
    samples = [*range(0, 700, 29), *range(900, 1100, 29), 2**40]
    questions = []
    for m in [*cases, golden_lanes()]:
        phases = [[p.start, p.weights] for p in m._phases]
        lanes = [m.lanes.count, m.lanes.windows, m.lanes.open, list(m.plain)]
        skips = [[skip.at, skip.count] for skip in m.skips.skips]
        datasets = dict(zip(m.names, m.sizes, strict=True))
        content = {"seed": m.seed, "block": m.block, "datasets": datasets, "phases": phases, "skips": skips}
        questions.append(("order", {**content, "samples": samples, "inverse": False, "lanes": lanes}))
    for m, answer in zip([*cases, golden_lanes()], ask(*questions), strict=True):
        ours = [(m.names[k], *rest) for k, *rest in zip(*(c.tolist() for c in columns(m, samples)), strict=True)]
        assert [tuple(row) for row in answer] == ours


def test_what_is_loaded_ahead_is_what_batches_need(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing else is compiled in the midst of a run."""
    for used in (kernels.locate_many, kernels.windows_many, lane_kernels.locate_in_lanes, lane_kernels.permute_many):
        monkeypatch.setattr(used, "codes", {})
    monkeypatch.setattr(permutation, "_loaded", False)
    permutation.load_kernels()
    monkeypatch.setattr(Kernel, "_find", lambda self, kinds: pytest.fail(f"{self.__name__} is compiled for {kinds}"))
    samples = np.arange(40, dtype=np.uint64)
    for m in (cl.Mixture([3000, 500], [1, 2]), LaneMixture(Lanes(count=2), sizes=[3000, 500], weights=[1, 2])):
        m.sample_many(samples)
        m.sample_many(samples.reshape(2, 20))


INSIDE = """
import numpy as np
import conceptloader as cl
from conceptloader.order.many.lanes import LaneMixture
from conceptloader.order.permutation import load_kernels
from conceptloader.order.reference import Lanes
load_kernels()
samples = np.arange(3000, dtype=np.uint64)
for sizes in ([1], [7, 1500], [3000, 500, 64, 2000, 40]):
    common = {"sizes": sizes, "weights": [*range(1, len(sizes) + 1)]}
    plain = tuple(str(k) for k, size in enumerate(sizes) if size < 64)
    for m in (cl.Mixture(**common, block=1), cl.Mixture(**common), LaneMixture(Lanes(count=1), plain=plain, **common)):
        datasets, epochs, windows = m.sample_many(samples)
        for k in range(len(sizes)):
            mine = np.flatnonzero((datasets == k) & (epochs == 0))
            assert m.indices_of_windows(k, 0, windows[mine]).tolist() == mine.tolist()
"""


def test_kernels_stay_in_their_arrays(tmp_path: Path) -> None:
    """With numba's bounds checks, in a process of its own."""
    environment = {**os.environ, "NUMBA_BOUNDSCHECK": "1", "NUMBA_CACHE_DIR": str(tmp_path)}
    checkout = Path(__file__).parents[2]
    subprocess.run([sys.executable, "-c", INSIDE], env=environment, cwd=checkout, check=True, timeout=200)
