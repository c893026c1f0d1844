"""`outputs.columns`: how a column stands in a batch, and whether all tokens that count have a value."""

from collections.abc import Sequence

import numpy as np

from conceptloader.base.strict import unknown
from conceptloader.config import Outputs, View
from conceptloader.errors import ConfigError
from conceptloader.format.spec import columnfile
from conceptloader.format.spec.columnfile import ColumnFile
from conceptloader.kernels.arrays import ColumnOptions
from conceptloader.loader.batch.layout import BF16, FieldLayout
from conceptloader.loader.batch.tables import WIDER


def column_layout(name: str, options: ColumnOptions, views: Sequence[View], outputs: Outputs) -> FieldLayout:
    """The array of a column.

    Raises ConfigError for one that no dataset has, that is not the same in all that have it, or that lacks values,
    unless the options say what is `missing`.
    """
    where = f"outputs.columns.{name}"
    found = [(view, view.dataset.columns.get(name)) for view in views]
    types = {view.name: (column.dtype, column.shape) for view, column in found if column is not None}
    if not types:
        raise unknown(where, name, {one for view in views for one in view.dataset.columns}, "column")
    first = next(iter(types))
    other = next((key for key in types if types[key] != types[first]), first)
    if other != first:
        raise ConfigError(
            where,
            f"{_shown(*types[first])} in dataset {first}, but {_shown(*types[other])} in {other}",
            "the same type and shape in all of them",
            f"write the column of {other} again with dtype and shape of {first}: conceptloader column",
        )
    said = {view.name: column.extra["at"] for view, column in found if column is not None and "at" in column.extra}
    if len(set(said.values())) > 1:
        raise ConfigError(
            where,
            f"values that belong to {', '.join(f'{at} in dataset {key}' for key, at in said.items())}",
            "values that belong to the labels in all of them, or to the inputs",
            "write the column of one of them again, with the same `at`",
        )
    for view, column in found if options.missing is None else ():
        lacking = "no such column" if column is None else _lacks(name, view, column, options.at, outputs)
        if lacking:
            raise ConfigError(
                where,
                f"{lacking} in dataset {view.name}",
                "a value for each token",
                f"run `conceptloader column` on {view.name}, or set what stands there: columns: {{{name}: "
                f"{{at: {options.at}, missing: -1}}}}",
            )
    code, shape = types[first]
    dtype = BF16 if code == columnfile.BF16 else np.dtype(f"<{code}")
    if options.dtype == "widened" and code in WIDER:
        dtype = np.dtype(WIDER[code][0])
    return FieldLayout(
        name=name,
        field=name,
        dtype=dtype,
        labels=options.at == "labels",
        shape=shape,
        stored=code,
        blank=_blank(where, options.missing, dtype),
    )


def _blank(where: str, missing: float | None, dtype: np.dtype[np.generic]) -> float:
    """Raises: ConfigError unless an element of the array can be this number."""
    if not missing:
        return 0
    bits = dtype is BF16
    with np.errstate(all="ignore"):
        value = np.array(missing).astype(np.float32 if bits else dtype)
    if (dtype.kind in "iu" and not bits and value != missing) or not np.isfinite(value):
        raise ConfigError(
            f"{where}.missing",
            str(missing),
            f"a number that {dtype} can hold",
            f"set {where}.missing in the range of {dtype}",
        )
    return int(value.view(np.uint32)) >> 16 if bits else value.item()


def _shown(dtype: str, shape: tuple[int, ...]) -> str:
    return f"{dtype}{list(shape)}"


def _lacks(name: str, view: View, column: ColumnFile, at: str, outputs: Outputs) -> str:
    """Which tokens of a dataset have no value where one would count; empty if there are none.

    The first tokens of documents count as inputs, and as labels only where these have a loss.
    """
    shards = view.dataset.manifest.shards
    absent = int(shards.tokens[column.files.size < 0].sum())
    tokens, starts = (column.holes.tokens, column.holes.starts) if column.holes else (0, 0)
    if at == "labels" and not absent and tokens == starts:
        borders = bool(((shards.documents > 0) | (shards.tokens == 0)).all()) and outputs.mask_document_boundaries
        # Of what is given to be one window, other pieces are read: samples of Megatron's own.
        first = tokens == 1 and view.count > 1 and _is_first(name, view, column)
        if view.kind != "window" or borders or first:
            return ""
    if not absent + tokens:
        return ""
    kinds = f"{starts} begin documents, {absent} are in shards without the column"
    return f"{absent + tokens} tokens without a value ({kinds})"


def _is_first(name: str, view: View, column: ColumnFile) -> bool:
    """Whether the only token without a value is the dataset's first, which is no window's label."""
    assert column.holes is not None
    shard = int(np.flatnonzero(view.dataset.manifest.shards.tokens)[0])
    size = int(column.holes.size[shard])
    return size > 0 and bool(view.dataset.files.read(columnfile.holes_kind(name), shard, 0, 1)[0] & 1)
