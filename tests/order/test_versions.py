"""Versions of the order: each has golden vectors that nobody may edit."""

import hashlib
from pathlib import Path

from conceptloader.kernels import order as kernels
from conceptloader.order import reference
from conceptloader.order.mixture import ORDER_VERSION

GOLDEN = {1: "5160a8545c18eee9dd51b7a78d277496f02f5843a94d037eb25ac8c579bbac44"}
"""SHA-256 of golden_v<n>.json. A new version gets a file and a line; those that are here never change."""


def test_every_version_has_vectors_and_none_was_edited():
    assert sorted(GOLDEN) == list(range(1, ORDER_VERSION + 1))
    for version, digest in GOLDEN.items():
        data = (Path(__file__).parent / f"golden_v{version}.json").read_bytes()
        assert hashlib.sha256(data).hexdigest() == digest, "add a version instead of changing one"


def test_kernels_and_reference_share_their_constants():
    """So that the vectors, which test both, see a change of either."""
    for name in ("GOLDEN", "MIX_A", "MIX_B", "TABLE_MAX"):
        assert int(getattr(kernels, name)) == getattr(reference, name)
