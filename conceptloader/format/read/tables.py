"""Spans and documents as tables of Arrow."""

from typing import Any

from conceptloader.base.packages import need


class Tabular:
    """Something with columns: arrays of one length, by name."""

    def _columns(self, *arguments: Any) -> dict[str, Any]:
        raise NotImplementedError

    def to_arrow(self, *arguments: Any) -> Any:
        """A pyarrow.Table of it. Raises: ConfigError without the pyarrow package."""
        return need("pyarrow", "to_arrow: the pyarrow package is not installed").table(self._columns(*arguments))
