"""Versions of the order: each has golden vectors that nobody may edit, and a checkpoint keeps to its own."""

import hashlib
from dataclasses import replace
from pathlib import Path

import pytest

from conceptloader.errors import ConfigError, ResumeError
from conceptloader.kernels import order as kernels
from conceptloader.order import reference
from conceptloader.order.mixture import ORDER_VERSION, Mixture, Phase
from conceptloader.order.progress import spec
from conceptloader.order.progress.resume import resume
from conceptloader.order.progress.spec import Member, OrderSpec

GOLDEN = {1: "5160a8545c18eee9dd51b7a78d277496f02f5843a94d037eb25ac8c579bbac44"}
"""SHA-256 of golden_v<n>.json. A new version gets a file and a line; those that are here never change."""


def small_spec(**changes: object) -> OrderSpec:
    member = Member(dataset="a", seq_len=8, windows=100, stream_fingerprint="x", token_range=(0, 801))
    whole = OrderSpec(seed=1, block=8, members={"a": member}, phases=[Phase(start=0, weights={"a": 1})])
    return replace(whole, **changes)  # type: ignore[arg-type]


def test_every_version_has_vectors_and_none_was_edited() -> None:
    assert sorted(GOLDEN) == list(range(1, ORDER_VERSION + 1))
    for version, digest in GOLDEN.items():
        data = (Path(__file__).parent / f"golden_v{version}.json").read_bytes()
        assert hashlib.sha256(data).hexdigest() == digest, "add a version instead of changing one"


def test_a_checkpoint_of_an_older_version_goes_on_in_its_own_order(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(spec, "ORDER_VERSION", 2)  # a later release, which still has version 1
    saved = OrderSpec.from_dict(small_spec(order_version=1).to_dict())
    assert resume(saved, small_spec(order_version=2), 50).order_version == 1
    assert resume(saved, small_spec(order_version=2), 0).order_version == 2, "nothing was trained yet"


def test_a_checkpoint_of_a_later_version_is_refused() -> None:
    later = small_spec().to_dict() | {"order_version": ORDER_VERSION + 1}
    with pytest.raises(ResumeError, match="order_version is 2, this release of conceptloader knows up to 1"):
        OrderSpec.from_dict(later)


def test_an_unknown_version_is_never_replaced_by_a_known_one() -> None:
    with pytest.raises(ConfigError, match="order_version: found 2"):
        Mixture([10], order_version=ORDER_VERSION + 1)
    with pytest.raises(ConfigError, match="order_version: found 2"):
        small_spec(order_version=ORDER_VERSION + 1).build()


def test_kernels_and_reference_share_their_constants() -> None:
    """So that the vectors, which test both, see a change of either."""
    for name in ("GOLDEN", "MIX_A", "MIX_B", "TABLE_MAX"):
        assert int(getattr(kernels, name)) == getattr(reference, name)
