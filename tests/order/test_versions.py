"""Versions of the order: each has golden vectors that nobody may edit."""

import hashlib
from pathlib import Path

from conceptloader.kernels import order as kernels
from conceptloader.order import reference
from conceptloader.order.ramp import RAMP_VERSION

GOLDEN = {
    1: "5160a8545c18eee9dd51b7a78d277496f02f5843a94d037eb25ac8c579bbac44",
    2: "f1f191904e71d1d46f0aaed0d8afbacea00919b4b32b17be7165988ad7d0474e",
}
"""SHA-256 of golden_v<n>.json. A new version gets a file and a line; those that are here never change."""


def test_every_version_has_vectors_and_none_was_edited() -> None:
    assert sorted(GOLDEN) == list(range(1, RAMP_VERSION + 1))
    for version, digest in GOLDEN.items():
        data = (Path(__file__).parent / f"golden_v{version}.json").read_bytes()
        assert hashlib.sha256(data).hexdigest() == digest, "add a version instead of changing one"


def test_kernels_and_reference_share_their_constants() -> None:
    """So that the vectors, which test both, see a change of either."""
    for name in ("GOLDEN", "MIX_A", "MIX_B", "TABLE_MAX"):
        assert int(getattr(kernels, name)) == getattr(reference, name)
