"""How far tests go that have a long form: `make soak` runs it, everything else the short one."""

import os

SOAK = bool(os.environ.get("CONCEPTLOADER_SOAK"))


def scaled(short, long):
    """Repetitions: `short` in `make test`, `long` in `make soak`."""
    return long if SOAK else short
