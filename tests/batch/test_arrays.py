"""The table of a batch's arrays: what follows from it, and what stands elsewhere and has to agree."""

import dataclasses
from pathlib import Path
from typing import get_args

import numpy as np

from conceptloader.config import Outputs
from conceptloader.kernels.arrays import BATCH, TRACK, IntKey, TensorKey

PAGE = Path(__file__).resolve().parents[2] / "docs" / "batch-keys.md"
NOT_IN_THE_TABLE = ("| any token field |", "| any column |", "| `consumed_samples` |")
FORMS = {"": "`tracks.T`", "numbers": "codec `numpy`", "vectors": "codec `numpy`, several numbers per span"}


def enabled_by(row):
    switch = row.switch or row.name
    defaults = {field.name: field.default for field in dataclasses.fields(Outputs)}
    return "always" if switch not in defaults else "default" if defaults[switch] else f"`outputs.{switch}`"


def line(row, name, enabled):
    kind = "track's dtype" if not row.dtype else np.dtype(row.dtype).name if len(row.dtype) == 2 else row.dtype
    shape = f" [{', '.join(row.shape)}]" if row.shape else ""
    return f"| `{name}` | {kind}{shape} | {row.text} | {enabled} |"


def test_the_page_has_a_line_for_each_row():
    """A failure shows the line that the page lacks."""
    lines = [line(row, row.name, enabled_by(row)) for row in BATCH]
    lines += [line(row, f"T_{row.name}", FORMS.get(row.switch, f"layout `{row.switch}`")) for row in TRACK]
    found = [text for text in PAGE.read_text().splitlines() if text.startswith("| `") or "any token field" in text]
    assert [text for text in found if not text.startswith(NOT_IN_THE_TABLE)] == lines


def test_types_name_all_arrays():
    tensors, others = {row.name for row in BATCH if row.shape}, {row.name for row in BATCH if not row.shape}
    assert tensors == {*get_args(TensorKey)}
    assert others | {"consumed_samples"} == {*get_args(IntKey)}
