"""Adapters to training frameworks. A checkout has them in the top-level integrations/, an install brings them here."""

from pathlib import Path

_here = Path(__file__).resolve().parent
if not (_here / "megatron_lm").is_dir():
    __path__.append(str(_here.parents[1] / "integrations"))
