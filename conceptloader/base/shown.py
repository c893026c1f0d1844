"""What notebooks show of an object. It is drawn in conceptloader.view, a layer above all data: found by name, when a
notebook asks, as public names are."""

from importlib import import_module
from typing import Any


def drawn(thing: Any, *place: Any, **options: Any) -> Any:
    """What conceptloader.view.show makes of an object."""
    return import_module("conceptloader.view.notebook").show(thing, *place, **options)


class Shown:
    """An object that a notebook shows by itself."""

    def _repr_html_(self) -> str:
        html: str = drawn(self)._repr_html_()
        return html
