"""The order as the page describes it, in JavaScript, against the golden vectors and against this package."""

import hashlib
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import conceptloader as cl
from conceptloader.errors import ConfigError
from conceptloader.order.ramp import SHARES
from conceptloader.order.tree import build_tree
from conceptloader.order.weights import exact_weights
from tests.order import test_ramp
from tests.order.test_golden import GOLDEN, golden_mixture
from tests.spec.node import ask


def question(m: cl.Mixture, samples: list[int], inverse: bool = False, **changes: Any) -> tuple[str, Any]:
    """Ask for the samples of a mixture, from what it was made of."""
    phases = [[p.start, p.weights] for p in m.phases]
    skips = [[skip.at, skip.count] for skip in m.skips.skips]
    datasets = dict(zip(m.names, m.sizes, strict=True))
    content = {"seed": m.seed, "block": m.block, "datasets": datasets, "phases": phases, "skips": skips}
    return "order", {**content, "samples": samples, "inverse": inverse, **changes}


def test_permutations() -> None:
    cases = [(int(c["n"]), int(c["key"]), [int(i) for i in c["positions"]]) for c in GOLDEN["permutation"]]
    answers = ask(*(("permutation", case) for case in cases))
    for (_, _, positions), case, (forward, back) in zip(cases, GOLDEN["permutation"], answers, strict=True):
        assert forward == [int(j) for j in case["forward"]]
        assert back == positions


def test_keys() -> None:
    keys = GOLDEN["keys"]
    assert [str(key) for key in ask(*(("keys", parts) for parts in keys["parts"]))] == keys["keys"]


GOLDEN_RAMPS = [
    [0, {"web": 0.7, "code": 0.2, "books": 0.1}],
    [1000, {"web": 0.5, "code": 0.3, "tiny": 0.01}, [3000, "linear"]],
    [6000, {"books": 1}, [5001, "cosine"]],
    [10_000, {"web": 1, "code": 2}],
    [12_000, {"web": 1}, [20, "cosine"]],
]


def columns(m: cl.Mixture, answer: list[Any]) -> list[np.ndarray]:
    """Datasets as their numbers in the mixture, draws, epochs, windows."""
    rows = [(m.names.index(name), *rest) for name, *rest in answer]
    return [np.array(column, np.uint64) for column in zip(*rows, strict=True)]


def digest(arrays: list[np.ndarray]) -> str:
    return hashlib.sha256(b"".join(a.astype("<u8").tobytes() for a in arrays)).hexdigest()


def test_the_golden_mixture_in_all_blocks() -> None:
    m, digests = golden_mixture(), GOLDEN["mixture"]["digests"]
    weights = [{"web": 0.7, "code": 0.2, "books": 0.1}, {"web": 0.5, "code": 0.3, "tiny": 0.01, "books": 0.1}]
    phases = [[0, weights[0]], [1000, weights[1]]]  # as they were written, not as the integers that were made of them
    samples = [*range(20_000), *range(2**40, 2**40 + 500)]
    answers = ask(*(question(m, samples, phases=phases, block=int(block)) for block in digests))
    assert {b: digest(columns(m, a)) for b, a in zip(digests, answers, strict=True)} == digests
    first = answers[list(digests).index("64")][:40]
    for column, name in zip(columns(m, first), ("datasets", "draws", "epochs", "windows"), strict=True):
        assert name == "draws" or column.tolist() == GOLDEN["mixture"]["first"][name]


def test_the_golden_ramps() -> None:
    m, digests = test_ramp.golden_mixture(64), test_ramp.GOLDEN["mixture"]["digests"]
    samples = [*range(20_000), *range(2**40, 2**40 + 500)]
    answers = ask(*(question(m, samples, phases=GOLDEN_RAMPS, block=block) for block in (7, 64)))
    assert [digest(columns(m, answer)) for answer in answers] == [digests["7"], digests["64"]]


def test_trees() -> None:
    mixtures = [
        cl.Mixture([10**6] * int(n), weights=[(k * 7919) % 1009 + 1 for k in range(int(n))], block=1)
        for n in GOLDEN["trees"]
    ]
    answers = ask(*(question(m, list(range(5000))) for m in mixtures))
    found = [digest(columns(m, answer)[:2]) for m, answer in zip(mixtures, answers, strict=True)]
    assert found == list(GOLDEN["trees"].values())


NAMES = st.text(st.characters(exclude_categories=["Cs"]), min_size=1, max_size=3)
WEIGHTS = st.integers(1, 10**6) | st.floats(1e-3, 1e6) | st.floats(1e-3, 1e6).map(lambda x: round(x, 2) + 0.01)


@st.composite
def mixtures(draw: st.DrawFn) -> tuple[cl.Mixture, list[Any]]:
    """A mixture, and its phases with the weights as they were written."""
    names = draw(st.lists(NAMES, min_size=1, max_size=30, unique=True))
    sizes = [draw(st.integers(1, 1100) | st.integers(1, 2**63)) for _ in names]
    starts = sorted({0, *draw(st.lists(st.integers(1, 900), max_size=3))})
    members = st.lists(st.sampled_from(names), min_size=1, unique=True)
    phases: list[list[Any]] = [[start, {name: draw(WEIGHTS) for name in draw(members)}] for start in starts]
    for phase, after in zip(phases[1:], [*starts[2:], 10**9], strict=False):
        if draw(st.booleans()):  # none is in the middle of another
            phase.append([draw(st.integers(1, min(after - phase[0], 800))), draw(st.sampled_from(sorted(SHARES)))])
    jumps = draw(st.lists(st.tuples(st.integers(0, 900), st.integers(1, 300)), max_size=3))
    m = cl.Mixture(
        sizes,
        names=names,
        seed=draw(st.integers(-(2**70), 2**70)),
        block=draw(st.sampled_from([1, 3, 64, 100])),
        phases=as_phases(phases),
        skips=[cl.Skip(at=at, count=count) for at, count in jumps],
    )
    return m, phases


def as_phases(phases: list[list[Any]]) -> list[cl.Phase]:
    made = [cl.Ramp(samples=ramp[0][0], shape=ramp[0][1]) if ramp else None for _, _, *ramp in phases]
    return [cl.Phase(start=one[0], weights=one[1], ramp=ramp) for one, ramp in zip(phases, made, strict=True)]


@settings(max_examples=12)
@given(st.lists(mixtures(), min_size=1, max_size=8), st.lists(st.integers(0, 2**62), max_size=10))
def test_any_mixture(cases: list[tuple[cl.Mixture, list[Any]]], far: list[int]) -> None:
    samples = [*range(0, 1500, 7), *far]
    answers = ask(*(question(m, samples, inverse=True, phases=phases) for m, phases in cases))
    for (m, _), answer in zip(cases, answers, strict=True):
        datasets, draws = m.locate_many(samples)
        _, epochs, windows = m.sample_many(samples)
        g = [m.skips.global_index(t) for t in samples]
        names = [m.names[k] for k in datasets]
        ours = zip(names, draws.tolist(), epochs.tolist(), windows.tolist(), g, g, strict=True)
        assert [tuple(row) for row in answer] == list(ours)


def test_names_go_by_code_points() -> None:
    """U+FFFF is below U+1D11E, but above its first half in UTF-16; ties of weights go by name."""
    names = ["\uffff", "\U0001d11e", "é", "Z", "a"]
    m = cl.Mixture([10**6] * 5, names=names, weights=[1] * 5, block=1)
    (answer,) = ask(question(m, list(range(50))))
    assert [m.names[k] for k in m.locate_many(np.arange(50))[0]] == [name for name, *_ in answer]


@settings(max_examples=12)
@given(st.lists(st.lists(WEIGHTS, min_size=1, max_size=60), min_size=1, max_size=8))
def test_any_tree(cases: list[list[float]]) -> None:
    for weights, answer in zip(cases, ask(*(("tree", weights) for weights in cases)), strict=True):
        exact = exact_weights({f"{k:03}": weight for k, weight in enumerate(weights)}, "weights")
        tree = build_tree(list(exact.values()))
        assert answer == [tree.left, tree.right, tree.share, tree.deviation]


def test_weights_beyond_the_precision_of_floats() -> None:
    """Where 1 / weight and 1 / float(weight) differ, the trees may; the page says which one it is."""
    rng = np.random.default_rng(0)
    cases = [[float(w) for w in rng.lognormal(0, 1, 40)] for _ in range(20)]
    exact = [list(exact_weights({f"{k:03}": w for k, w in enumerate(c)}, "weights").values()) for c in cases]
    assert sum(1 / w != 1 / float(w) for weights in exact for w in weights) > 100
    for weights, answer in zip(exact, ask(*(("tree", weights) for weights in cases)), strict=True):
        tree = build_tree(weights)
        assert answer == [tree.left, tree.right, tree.share, tree.deviation]


def test_ranks() -> None:
    rule, shapes = ((0, 12), (30, 24), (100, 48)), [(1, 4, 3), (2, 3, 2), (6, 2, 1), (12, 1, 0)]
    for scheme in ("contiguous", "strided"):
        questions = [
            (rule, step, micro, dp, rank, scheme == "strided") for micro, dp, rank in shapes for step in range(9)
        ]
        for (_, step, micro, dp, rank, _), answer in zip(
            questions, ask(*(("ranks", q) for q in questions)), strict=True
        ):
            partition = cl.Partition(micro_batch_size=micro, dp_size=dp, scheme=scheme)
            plan = cl.Plan(partition=partition, schedule=cl.BatchSchedule(rule))
            assert [row.tolist() for row in plan.micro_batches(step, rank)] == answer


@pytest.mark.parametrize(
    "change",
    [
        {"block": 0},
        {"block": 65_537},
        {"phases": [[5, {"a": 1}]]},
        {"phases": [[0, {"a": 1}], [9, {"a": 1}], [9, {"a": 1}]]},
        {"phases": [[0, {"a": 0}]]},
        {"phases": [[0, {"a": -0.5}]]},
        {"phases": [[0, {"a": 1, "b": 2**40}]]},
        {"phases": [[0, {"c": 1}]]},
        {"phases": [[0, {"a": 1}, [5, "linear"]]]},
        {"phases": [[0, {"a": 1}], [9, {"b": 1}, [5, "square"]]]},
        {"phases": [[0, {"a": 1}], [9, {"b": 1}, [0, "linear"]]]},
        {"phases": [[0, {"a": 1}], [9, {"b": 1}, [2**31 + 1, "linear"]]]},
        {"phases": [[0, {"a": 1}], [9, {"b": 1}, [5, "linear"]], [13, {"a": 1}, [5, "linear"]]]},
        {"datasets": {"a": 0, "b": 1}},
        {"datasets": {"a": 2**63 + 1, "b": 1}},
        {"skips": [[-1, 1]]},
        {"skips": [[0, 0]]},
        {"skips": [[2**62, 1]]},
        {"skips": [[0, 2**62]]},
    ],
    ids=str,
)
def test_both_refuse(change: dict[str, Any]) -> None:
    good = {
        "seed": 1, "block": 64, "datasets": {"a": 1, "b": 2**63}, "skips": [[0, 2**62 - 1]],
        "phases": [[0, {"a": 1, "b": 2**40 - 1}], [9, {"b": 1}, [2**31, "cosine"]]],
    }  # fmt: skip

    def build(content: dict[str, Any]) -> cl.Mixture:
        return cl.Mixture(
            list(content["datasets"].values()),
            names=list(content["datasets"]),
            block=content["block"],
            phases=as_phases(content["phases"]),
            skips=[cl.Skip(at=at, count=count) for at, count in content["skips"]],
        )

    build(good)
    with pytest.raises(ConfigError):
        build({**good, **change})
    asked = {"samples": [0], "inverse": False}
    accepted, refused = ask(("order", {**good, **asked}), ("order", {**good, **change, **asked}))
    assert "refused" not in accepted
    assert "refused" in refused
