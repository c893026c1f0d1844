"""A dataset as packs, without an order."""

from dataclasses import replace

import conceptloader as cl


def make_view(path, seq_len, bins, overflow="split", quarantine=()):
    config = {
        "seq_len": seq_len,
        "packing": {"bins": bins, "overflow": overflow},
        "datasets": {"x": {"path": str(path)}},
        "exclude": [{"dataset": "x", "tokens": [low, high]} for low, high in quarantine],
    }
    [view] = cl.open_blend(config).views
    return replace(view, tracks=tuple(view.dataset.tracks))
