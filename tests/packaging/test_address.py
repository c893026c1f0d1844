"""The address of the repository: one variable, and links of the README that work on the index's page."""

import re
import runpy
import sys

import pytest

from tests.packaging.address import NAMED, address


@pytest.fixture(scope="module")
def metadata(checkout):
    """What setup.py hands over."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(sys, "path", [*sys.path])
        patch.setattr("setuptools.setup", lambda **given: taken.update(given))
        taken = {}
        runpy.run_path(str(checkout / "setup.py"))
    return taken


def test_pages_name_the_one_address(checkout):
    for name in NAMED:
        assert address() in (checkout / name).read_text("utf-8"), name
    for page in [*checkout.glob("*.md"), *checkout.glob("docs/*.md")]:
        assert "<this repository>" not in page.read_text("utf-8"), page


def test_links_of_the_long_description_are_addresses(checkout, metadata):
    links = re.findall(r"\]\(([^)#]+)", metadata["long_description"])
    assert len(links) == len(re.findall(r"\]\(([^)#]+)", (checkout / "README.md").read_text("utf-8"))) > 20
    assert all(link.startswith("https://") for link in links)
    inside = [link.removeprefix(address()).split("/", 3)[-1] for link in links if link.startswith(address())]
    assert all((checkout / path).exists() for path in inside), inside
    assert "docs/README.md" in inside
    assert set(metadata["project_urls"]) == {"Source", "Documentation", "Changelog", "Issues"}
