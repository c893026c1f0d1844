"""Keys of the configuration that rooms above carry out: a module each, imported where the key is given.

What the core asks of the module of a key:

    NEEDS                          (part, why): what a front end has to carry out for it (run/entry.py), and why else it
                                   would have no effect
    check(config)                  of a key that is a mapping: raises ConfigError; for each configuration that is made
    with_paths(section, change)    of a key that is a mapping: it, with change(path, its key) in place of each path
    resumed(blend, saved, allow)   of `mixing`: see Mixing in run/weights.py

A new one is a field of the schema, with `metrics` and `mixing` as examples, and a row here.
"""

from typing import Any

from conceptloader.base.packages import from_above

ADD_ONS = {
    "mixing": "conceptloader.run.mixing.learning",
    "metrics": "conceptloader.loader.metrics",
}
"""A key of the configuration -> the module that carries it out."""


def add_on(key: str) -> Any:
    """The module of a key."""
    return from_above(ADD_ONS[key])
