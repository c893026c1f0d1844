"""Damaged files: the compiled reader refuses what the plain one refuses, and reads the rest alike."""

import numpy as np
import pytest

import conceptloader as cl
from conceptloader.batch.open import decide_layout
from conceptloader.batch.reader import BatchReader
from conceptloader.blend import ConceptOptions, Outputs
from conceptloader.errors import ConceptloaderError
from conceptloader.testing import PlainReader
from tests.batch.cases import read
from tests.batch.compare import assert_same
from tests.batch.test_files import SEQ_LEN, whole_view
from tests.corpora.known import Recipe, build

KINDS = ["stream.bin", "documents.bin", "dense.index", "dense.data", "spans.index", "spans.data", "spans.spans"]


def damaged(data, rng):
    """The same number of other bytes."""
    data = bytearray(data)
    for _ in range(int(rng.integers(1, 4))):
        at = int(rng.integers(0, len(data)))
        match int(rng.integers(0, 4)):
            case 0:
                data[at] ^= 1 << int(rng.integers(8))
            case 1:
                data[at : at + 8] = rng.bytes(len(data[at : at + 8]))
            case 2:
                data[at : at + 16] = bytes(len(data[at : at + 16]))
            case 3:
                data[at - at % 4 : at - at % 4 + 4] = b"\xff" * len(data[at - at % 4 : at - at % 4 + 4])
    return bytes(data)


def outcome(reader, window):
    try:
        return read(reader, window)
    except ConceptloaderError as error:
        return error


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("shape", ["padded", "ragged"])
def test_both_readers_agree_on_damaged_files(tmp_path, kind, shape):
    rng = np.random.default_rng([KINDS.index(kind), shape == "ragged"])
    build(tmp_path / "a", Recipe(shards=[12], encodings={"dense": "dense", "spans": "spans"}), rng)
    view = whole_view(cl.open_dataset(tmp_path / "a"))
    outputs = Outputs(document_ids=True, position_ids="document", cu_seqlens=True, mask_document_boundaries=True)
    layout = decide_layout([view], SEQ_LEN, outputs, {t: ConceptOptions(layout=shape) for t in ("dense", "spans")})
    path = tmp_path / "a" / f"00000.{kind}"
    whole = path.read_bytes()
    refused = 0
    for _ in range(20):
        with path.open("r+b") as file:
            file.write(damaged(whole, rng))
        view = whole_view(
            cl.open_dataset(tmp_path / "a", verify_files=False)
        )  # it would refuse a file that changes under it
        compiled, plain = (cls(None, [view], layout) for cls in (BatchReader, PlainReader))
        for window in rng.integers(0, view.count, 4).tolist():
            wanted, found = outcome(plain, window), outcome(compiled, window)
            if isinstance(wanted, ConceptloaderError):
                refused += 1
                assert type(found) is type(wanted)
                assert str(path) in str(found)
            else:
                assert_same(found, wanted)
    assert refused or kind in ("stream.bin", "dense.data", "spans.data")
