"""What a manifest claims of its tracks is counted again by `verify --full`, and takes no memory on its word alone."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import conceptloader as cl
from conceptloader.batch.open import batch_layout, open_reader
from conceptloader.cli import main
from conceptloader.errors import ConfigError, FormatError
from conceptloader.format.tools.verify import Problem
from tests.corpora.small import written
from tests.hostile.test_attacks import edit
from tests.raises import raises

TOO_MANY = r"(spans|stream\.bin): found at least 2 spans of track concepts .* at most 1 as the mani"
TOO_LONG = r"index: found 3 concepts in record \d+ of track concepts, expected at most 2 as"
TOKENS, SPANS = 200, 50  # a span of 2 tokens every 4 tokens, with 1 to 3 concepts


@pytest.fixture(params=["dense", "spans"])
def path(tmp_path: Path, request: pytest.FixtureRequest) -> Path:
    spans = [(at, at + 2, [7] * (at % 3 + 1)) for at in range(0, TOKENS // 2, 4)]
    shard = [(range(TOKENS // 2), {"concepts": spans})]
    return written(tmp_path / "ds", shard, shard, tracks={"concepts": {"encoding": request.param}})


def tracks(path: Path) -> Any:
    return json.loads((path / "manifest.json").read_bytes())["tracks"]["concepts"]


def blend(path: Path, **options: Any) -> Any:
    config = {"seq_len": 100, "datasets": {"a": {"path": str(path)}}, "tracks": {"concepts": options}}
    return cl.open_blend(cl.load_config({**config, "order": "sequential"}))


def messages(problems: list[Problem]) -> str:
    assert all(problem.file.endswith("manifest.json") for problem in problems)
    return "\n".join(map(str, problems))


@pytest.mark.parametrize("change", [-1, 1])
def test_every_number_of_max_spans_is_counted_again(path: Path, change: int) -> None:
    assert cl.verify(path, full=True) == []
    right = tracks(path)["max_spans"]
    assert right[-1] == SPANS
    for k in range(21):
        wrong = [*right]
        wrong[k] += change
        if wrong != sorted(wrong) or min(wrong) < 0:
            continue
        edit(path, "tracks", "concepts", "max_spans", value=wrong)
        assert f"max_spans: found {wrong}, expected {right}" in messages(cl.verify(path, full=True))
        assert cl.verify(path) == []
    edit(path, "tracks", "concepts", "max_spans", value=[1] * 21)
    assert messages(cl.verify(path, full=True))
    assert main(["verify", "--full", str(path)]) == 1


@pytest.mark.parametrize("wrong", [None, 0, 2, 4, 2**26])
def test_max_items_is_counted_again(path: Path, wrong: int | None) -> None:
    edit(path, "tracks", "concepts", "max_items", value=wrong)
    problems = cl.verify(path, full=True)
    assert problems
    if wrong in (None, 4, 2**26):
        assert f"max_items: found {wrong}, expected 3" in messages(problems)


@pytest.mark.parametrize(
    ("claim", "value", "shape", "limit", "said"),
    [
        ("max_spans", [1] * 21, "padded", {"max_spans": 20}, TOO_MANY),
        ("max_spans", [1] * 21, "ragged", {"max_spans": 20}, TOO_MANY),
        ("max_items", 2, "padded", {"max_concepts": 2}, TOO_LONG),
    ],
)
def test_a_claim_too_small_is_an_error_not_a_cut(
    path: Path, claim: str, value: Any, shape: str, limit: dict[str, int], said: str
) -> None:
    """Also with `overflow: truncate`, unless the limit is one that somebody asked for."""
    edit(path, "tracks", "concepts", claim, value=value)
    for overflow in ("error", "truncate"):
        reader = open_reader(blend(path, layout=shape, overflow=overflow))
        with pytest.raises(FormatError, match=said):
            reader.read(np.array([0], np.uint64))
    found = open_reader(blend(path, layout=shape, overflow="truncate", **limit)).read(np.array([0], np.uint64))
    if claim == "max_spans":
        assert found["concepts_num_spans"].tolist() == [20]
    else:
        assert found["concepts_counts"].shape == (1, 28)
        assert found["concepts_counts"].max() == 2


def sample_bytes(path: Path) -> int:
    return batch_layout(blend(path)).carve(1).size


def test_a_claim_too_large_takes_no_memory(path: Path) -> None:
    """Not more than the files can hold."""
    right = sample_bytes(path)
    edit(path, "tracks", "concepts", "max_spans", value=[1 << 20] * 21)
    edit(path, "tracks", "concepts", "max_items", value=1 << 26)
    data = sum(file.stat().st_size for file in path.iterdir())
    assert data < 10_000
    assert sample_bytes(path) < right + 100 * 2000


def test_sizes_that_are_only_claimed_take_no_memory(path: Path) -> None:
    edit(path, "tracks", "concepts", "max_items", value=1 << 20)
    edit(path, "shards", "files", "concepts.data", "size", value=[200, 1 << 22])
    with pytest.raises(FormatError, match=r"00001\.concepts\.data: found \d+ bytes, expected 4194304"):
        sample_bytes(path)


@pytest.mark.parametrize(
    ("codec", "parameters"), [("concepts", {"x": 1}), ("json", {"x": 1}), ("numpy", {}), ("numpy", {"dtype": "f3"})]
)
@pytest.mark.parametrize("full", [False, True])
def test_unknown_parameters_of_a_codec_are_a_problem(path: Path, codec: str, parameters: Any, full: bool) -> None:
    edit(path, "tracks", "concepts", "codec", value=codec)
    edit(path, "tracks", "concepts", "parameters", value=parameters)
    found = messages(cl.verify(path, full=full))
    assert "tracks: concepts: " in found
    assert f"found parameters {parameters}" in found
    where = f"{path / 'manifest.json'}: track 'concepts': codec {codec}"
    with raises(ConfigError, where, "parameters", fix="parameters"):
        cl.open_dataset(path).spans("concepts", 0, 4)
    with raises(ConfigError, where):
        cl.open_dataset(path).files.item("concepts")  # what reads in bulk asks for
    file = path / "00001.concepts.index"
    file.write_bytes(bytes(file.stat().st_size))
    assert len(cl.verify(path, full=True)) > 1, "the rest is checked all the same"
