"""The bytes that docs/format.md shows are those of the golden dataset, and all of them."""

import re

from tests.format.golden_build import golden

FILE = re.compile(r"^(00000\.[a-z.]+) ")
LINE = re.compile(r"^ *([0-9]+)  ((?:[0-9a-f]{2} )*[0-9a-f]{2})(?:  |$)")


def shown(page):
    """File -> its bytes, from the block of the example."""
    block = page.split("## An example, byte by byte")[1].split("```")[1]
    files = {}
    for line in block.strip().splitlines():
        if found := FILE.match(line):
            data = files[found[1]] = bytearray()
        else:
            found = LINE.match(line)
            assert found, f"neither a file nor bytes: {line}"
            assert int(found[1]) == len(data), line
            data += bytes.fromhex(found[2])
    return files


def test_the_example_shows_the_golden_files(checkout):
    files = shown((checkout / "docs/format.md").read_text("utf-8"))
    assert len(files) == 7
    for name, data in files.items():
        assert bytes(data) == (golden() / "stream" / name).read_bytes(), name
