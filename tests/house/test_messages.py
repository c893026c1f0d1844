"""What tests.house.messages takes for a pronoun in the place of the expected thing."""

import re

from tests.house.messages import calls


def test_pages_are_named_by_their_address():
    """An installed package has no docs/."""
    assert not [(file, parts) for file, _, parts in calls() if re.search(r"(?<![/\w])docs/", str(parts))]
