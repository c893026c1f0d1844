"""Objects that notebooks show. What draws them lies far above, and is imported when one asks."""

from typing import Any

from conceptloader.base.packages import from_above


class Shown:
    """An object that a notebook shows by itself."""

    def show(self, i: int = 0, **options: Any) -> Any:
        """HTML for a notebook, with number `i` of what it has; see conceptloader.trace.viewer.show for the options."""
        return from_above("conceptloader.trace.viewer").show(self, i, **options)

    def _repr_html_(self) -> str:
        return str(self.show())
