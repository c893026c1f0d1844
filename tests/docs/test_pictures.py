"""The pictures of the pages show what the product yields today."""

import pytest

from tests.docs.pictures import DOCS, PICTURES


@pytest.mark.parametrize("name", PICTURES)
def test_a_picture_is_what_the_product_yields(name, tmp_path):
    assert PICTURES[name](tmp_path) == (DOCS / name).read_text("utf-8")
