"""What ranks read in the recorded histories stays what it was, and so do the hashes of orders without live weights."""

import json

import pytest

from tests.oracle.histories import COUNT, RECORDED, digests, write

CHUNKS = 5


@pytest.mark.parametrize("chunk", range(CHUNKS))
def test_a_history_reads_what_was_recorded(chunk, tmp_path):
    write(tmp_path)
    recorded, found = json.loads(RECORDED.read_text()), {}
    assert len(recorded) == COUNT
    for number in range(chunk, COUNT, CHUNKS):
        folder = tmp_path / str(number)
        folder.mkdir()
        found[str(number)] = digests(number, tmp_path, folder)
    assert found == {number: recorded[number] for number in found}
