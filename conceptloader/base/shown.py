"""Objects that notebooks show. What draws them is an add-on above all of them, imported when one asks."""

from typing import Any

from conceptloader.base.packages import find_add_on, need_add_on


class Shown:
    """An object that a notebook shows by itself."""

    def show(self, i: int = 0, **options: Any) -> Any:
        """HTML for a notebook, with number `i` of what it has; see conceptloader.viewer.show for the options."""
        return need_add_on("conceptloader.viewer", "show").show(self, i, **options)

    def _repr_html_(self) -> str | None:
        return str(self.show()) if find_add_on("conceptloader.viewer") else None  # a notebook then shows its repr
