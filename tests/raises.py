"""What an error says, by its parts: tests hold the kind, the place and the values; the wording is free to change."""

from contextlib import contextmanager

import pytest


@contextmanager
def raises(
    kind,
    path="",
    found="",
    expected="",
    *,
    fix="",
    code="",
):
    """An error of `kind`; each part that is given stands in the error's (`code`: equals it)."""
    with pytest.raises(kind) as caught:
        yield caught
    error = caught.value
    for name, part in [("path", path), ("found", found), ("expected", expected), ("fix", fix)]:
        has = getattr(error, name)
        assert str(part) in has, f"{name} is {has!r}, without {str(part)!r}; the error: {error}"
    assert not code or error.code == code, f"code is {error.code!r}, not {code!r}; the error: {error}"


def cells(text):
    """Rows of a table: a line each, its cells between ` | `; `-` is an empty one."""
    rows = [[cell.strip() for cell in line.split(" | ")] for line in text.strip().splitlines()]
    return [["" if cell == "-" else cell for cell in row] for row in rows]
