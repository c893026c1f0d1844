"""The compiled parser of token lists agrees with the json module, or declines."""

import json

import numpy as np
from hypothesis import example, given
from hypothesis import strategies as st

from conceptloader.ingest.records.records import read_record
from conceptloader.kernels.digits import parse_digits

SPACES = st.sampled_from(["", " ", "\t", "  "])


@given(st.lists(st.integers(0, 10**18 - 1)), SPACES, SPACES)
def test_lists_of_integers(values, before, after):
    text = before + f"{before},{after}".join(map(str, values)) + after
    out = np.empty(len(text) // 2 + 1, np.int64)
    assert parse_digits(np.frombuffer(text.encode(), np.uint8), out) == len(values)
    assert out[: len(values)].tolist() == values


@given(st.text("0123456789,-. e+", max_size=12))
@example("01")
@example("1,")
@example("")
@example("1 2")
def test_never_more_than_json(text):
    out = np.empty(len(text) // 2 + 1, np.int64)
    count = parse_digits(np.frombuffer(text.encode(), np.uint8), out)
    try:
        wanted = json.loads(f"[{text}]")
    except ValueError:
        assert count == -1
        return
    assert count in (-1, len(wanted))
    if count >= 0:
        assert out[:count].tolist() == wanted


def records():
    key = st.sampled_from(["tokens", 'a"tokens', "id", "x", '\\"tokens', "tokens\\"])
    value = st.recursive(
        st.lists(st.integers(0, 99), max_size=3) | st.sampled_from(["tokens", '"tokens": [1]', 0, None, "[", "]"]),
        lambda inner: st.dictionaries(key, inner, max_size=3),
        max_leaves=6,
    )
    return st.dictionaries(key, value, max_size=4)


@given(records(), st.sampled_from([None, 1]), st.booleans())
def test_records_read_alike(record, indent, ascii_only):
    line = json.dumps(record, indent=indent, ensure_ascii=ascii_only).replace("\n", " ").encode()
    found = read_record(line, "tokens")
    if isinstance(found.get("tokens"), np.ndarray):
        found["tokens"] = found["tokens"].tolist()
    assert found == record
