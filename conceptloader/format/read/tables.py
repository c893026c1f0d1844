"""Spans and documents as tables of Arrow and pandas."""

from typing import Any

from conceptloader.base.packages import need


class Tabular:
    """Something with columns: arrays of one length, by name."""

    def _columns(self, *arguments: Any) -> dict[str, Any]:
        raise NotImplementedError

    def to_arrow(self, *arguments: Any) -> Any:
        """A pyarrow.Table of it. Raises: ConfigError without the pyarrow package."""
        return need("pyarrow", "to_arrow: the pyarrow package is not installed").table(self._columns(*arguments))

    def to_pandas(self, *arguments: Any) -> Any:
        """A pandas.DataFrame of it. Raises: ConfigError without the packages pyarrow and pandas."""
        need("pandas", "to_pandas: the pandas package is not installed")
        return self.to_arrow(*arguments).to_pandas()
