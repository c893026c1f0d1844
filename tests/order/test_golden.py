"""Frozen orders of version 1: running trainings depend on every one of these numbers.

If a test here fails, the order changed. Do not edit the numbers: add a new order version that leaves this one alone.
"""

import hashlib
import json
from pathlib import Path

import numpy as np
import pytest

import conceptloader as cl
from conceptloader.base.hashing import derive_key
from tests.order import plain

GOLDEN = json.loads((Path(__file__).parent / "golden_v1.json").read_text())
RANDOM = {
    (1234, 0): 8929739308134081357,
    (1234, 1): 1522404034680757443,
    (0, 0): 5718582723650490556,
    (-1, 2**40): 1525940554188399697,
    (1234, 2**64 - 1): 3259276375545032009,
}
"""`outputs.random`: (seed, sample) -> number."""


def digest(*arrays):
    """SHA-256 of little-endian 64-bit values: short, and computable in any language."""
    return hashlib.sha256(b"".join(a.astype("<u8").tobytes() for a in arrays)).hexdigest()


def golden_mixture(block=64):
    return cl.Mixture(
        sizes=[1000, 1025, 10**9, 5],
        names=["books", "code", "web", "tiny"],
        seed=1234,
        block=block,
        segments=[
            cl.Segment(at=0, weights={"web": 0.7, "code": 0.2, "books": 0.1}),
            cl.Segment(at=1000, weights={"web": 0.5, "code": 0.3, "tiny": 0.01, "books": 0.1}),
            cl.Segment(at=1500, skip=100),
        ],
    )


@pytest.mark.parametrize("case", GOLDEN["permutation"], ids=lambda case: f"n={case['n']}")
def test_permutation(case):
    n, key = int(case["n"]), plain.mix64(int(case["key"]))
    assert [plain.permute(int(i), n, key) for i in case["positions"]] == [int(x) for x in case["forward"]]


def test_keys():
    assert [str(derive_key(*parts)) for parts in GOLDEN["keys"]["parts"]] == GOLDEN["keys"]["keys"]


def test_mixture_first_samples_in_full():
    for column, name in zip(
        golden_mixture().sample_many(np.arange(40)), ("datasets", "epochs", "windows"), strict=True
    ):
        assert column.tolist() == GOLDEN["mixture"]["first"][name]


@pytest.mark.parametrize("block", ["1", "7", "64", "4096"])
def test_mixture_digests(block):
    m = golden_mixture(int(block))
    positions = np.concatenate([np.arange(20_000), np.arange(2**40, 2**40 + 500)])
    assert digest(*m.locate_many(positions), *m.sample_many(positions)[1:]) == GOLDEN["mixture"]["digests"][block]


def test_trees():
    for n in (2, 10, 100, 1000):
        weights = [(k * 7919) % 1009 + 1 for k in range(n)]
        m = cl.Mixture([10**6] * n, weights=weights, block=1)
        assert digest(*m.locate_many(np.arange(5000))) == GOLDEN["trees"][str(n)]


def test_numbers_of_samples():
    """tests/oracle compares those of batches with the same function."""
    assert {place: plain.sample_random(*place) for place in RANDOM} == RANDOM
