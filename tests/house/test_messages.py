"""What tests.house.messages takes for a pronoun in the place of the expected thing."""

import re

import pytest

from tests.house.messages import PRONOUN, calls, parts_of


@pytest.mark.parametrize(
    "expected",
    [
        "one", "at least one", "one in each", "them", "whole ones", "such a list", "none", "one that ends in .npy",
        "one of them", "both or none", "it at 0", "the saved one", "one below 3", "at most that", "one at most",
    ],
)  # fmt: skip
def test_a_pronoun(expected: str) -> None:
    assert PRONOUN.search(expected)


@pytest.mark.parametrize(
    "expected",
    [
        "one of a, b", "at least one document", "one dimension of u4", "a document table", "all files of one set",
        "an integer", "no value", "only one of the two", "the same in both", "those of 0.2.0",
    ],
)  # fmt: skip
def test_a_noun(expected: str) -> None:
    assert not PRONOUN.search(expected)


def test_parts_of_a_whole_message() -> None:
    assert parts_of("t: found 1, expected 2; fix") == {"found": "t: 1", "expected": "2", "fix": "fix"}
    assert parts_of("broken") == {"found": "broken", "expected": "", "fix": ""}


def test_pages_are_named_by_their_address() -> None:
    """An installed package has no docs/."""
    assert not [(file, parts) for file, _, parts in calls() if re.search(r"(?<![/\w])docs/", str(parts))]
