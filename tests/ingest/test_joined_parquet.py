"""Bytes of several parquet files in one, as after `cat a b`: the last footer knows the rows of the last file only."""

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from conceptloader.errors import InputError
from conceptloader.ingest.parquet import row_groups

FILES = {
    "small": {"rows": 2},
    "large": {"rows": 5000},
    "empty": {"rows": 0},
    "indexed": {"rows": 900, "write_page_index": True, "row_group_size": 100},
    "plain": {"rows": 900, "compression": "none", "use_dictionary": False},
}


def write(path, rows, **options):
    text = [f"document {i} " * 5 for i in range(rows)]
    table = pa.table({"text": pa.array(text, pa.string()), "n": pa.array(range(rows), pa.int64())})
    pq.write_table(table, path, **options)
    return path.read_bytes()


@pytest.mark.parametrize("first", FILES)
@pytest.mark.parametrize("second", FILES)
@pytest.mark.parametrize("between", [b"", b"\n", bytes(100)])
def test_two_in_one_raise(tmp_path, first, second, between):
    path = tmp_path / "a.parquet"
    data = write(path, **FILES[first])
    path.write_bytes(data + between + write(path, **FILES[second]))
    with pytest.raises(InputError, match=r"several parquet files in one \(byte "):
        row_groups(str(path))


def test_rows_of_a_file_that_was_cut_are_not_lost_either(tmp_path):
    path = tmp_path / "a.parquet"
    data = write(path, **FILES["large"])
    path.write_bytes(data[: len(data) // 2] + write(path, **FILES["small"]))
    with pytest.raises(InputError, match="several parquet files in one"):
        row_groups(str(path))


def test_texts_and_values_that_hold_parquet_files_are_texts(tmp_path):
    inner = write(tmp_path / "inner.parquet", **FILES["indexed"])
    for encoding in ("PLAIN", "DELTA_LENGTH_BYTE_ARRAY"):
        path = tmp_path / "a.parquet"
        table = pa.table({"data": [inner] * 8, "more": [b"PAR1PAR1"] * 8})
        options = {"compression": "none", "use_dictionary": False, "column_encoding": encoding}
        pq.write_table(table, path, **options)
        assert row_groups(str(path))


def test_padding_and_bloom_filters_are_no_rows(tmp_path):
    """Between the last column chunk and the footer there may be anything, to which nothing but the footer points."""
    path = tmp_path / "a.parquet"
    data = write(path, **FILES["plain"])
    length = int.from_bytes(data[-8:-4], "little") + 8
    for more in (bytes(1 << 16), b"PAR1" * 100, bytes(range(256)) * 64, data[-length:]):  # or an older footer
        path.write_bytes(data[:-length] + more + data[-length:])
        assert len(row_groups(str(path))) == 1
