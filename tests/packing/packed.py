"""A dataset as packs, without an order."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import conceptloader as cl
from conceptloader.config import View


def make_view(path: Path, seq_len: int, bins: int, overflow: str = "split", quarantine: Any = ()) -> View:
    config: dict[str, Any] = {
        "seq_len": seq_len,
        "packing": {"bins": bins, "overflow": overflow},
        "datasets": {"x": {"path": str(path)}},
        "exclude": [{"dataset": "x", "tokens": [low, high]} for low, high in quarantine],
    }
    [view] = cl.open_blend(config).views
    assert view is not None
    return replace(view, tracks=tuple(view.dataset.tracks))
