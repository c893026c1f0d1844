"""Objects that notebooks show.

What draws them is in a layer above all of them, and is put here by `conceptloader`, which is above all layers.
"""

from typing import Any

draw: Any = None  # is conceptloader.viewer.show


class Shown:
    """An object that a notebook shows by itself."""

    def show(self, i: int = 0, **options: Any) -> Any:
        """HTML for a notebook, with number `i` of what it has; see conceptloader.viewer.show for the options."""
        return draw(self, i, **options)

    def _repr_html_(self) -> str:
        return str(self.show())
