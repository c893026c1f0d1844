"""`outputs.loss_weight` by a track of concepts: what configurations may say. Values: the oracle draws it too."""

import json
from pathlib import Path
from typing import Any

import pytest

import conceptloader as cl
from conceptloader.errors import ConfigError
from tests.raises import raises

TEXT = "abcdefghijklmnopqrstuvwxyz012345"


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """named: with names of concepts; ids: without; other: with the names in another order."""
    path = tmp_path_factory.mktemp("data")
    spans = [(2, 6, ["red"]), (8, 12, ["blue"]), (14, 18, ["red", "blue"]), (20, 24, ["green"]), (26, 28, [])]
    names = ["red", "blue", "green"]
    for dataset, known in (("named", names), ("ids", None), ("other", ["blue", "red", "green"])):
        found = [
            {"start": a, "end": b, "concepts": c if known else [names.index(one) for one in c]} for a, b, c in spans
        ]
        (path / f"{dataset}.jsonl").write_text(json.dumps({"id": "a", "text": TEXT, "spans": found}) + "\n")
        vocabularies = {} if known is None else {"concepts": known}
        cl.build(path / f"{dataset}.jsonl", path / dataset, tokenizer="bytes", no_eos=True, vocabulary=vocabularies)
    return path


def weights(data: Path, name: str = "named", more: dict[str, Any] | None = None, **how: Any) -> list[float]:
    """Of the labels of the only window, which are tokens 1 to 31."""
    config = {"seq_len": 31, "order": "sequential", "datasets": {"d": {"path": str(data / name)}}, **(more or {})}
    config["outputs"] = {"loss_weight": {"name": "concepts", "outside": 1, **how}}
    with cl.make_dataloader(config, micro_batch_size=1) as loader:
        batch = next(iter(loader))
    assert not [key for key in batch if "concepts" in key or "(" in key]
    found: list[float] = batch["loss_weight"][0].tolist()
    return found


def expected(outside: float, red: float, blue: float, both: float, green: float, none: float) -> list[float]:
    tokens = [outside] * 32
    for (a, b), value in zip(
        [(2, 6), (8, 12), (14, 18), (20, 24), (26, 28)], [red, blue, both, green, none], strict=True
    ):
        tokens[a:b] = [value] * (b - a)
    return tokens[1:]


@pytest.mark.parametrize(
    ("how", "path", "found"),
    [
        ({"concepts": {"reed": 0}}, "outputs.loss_weight.concepts.reed", "reed"),
        ({}, "outputs.loss_weight.concepts", "nothing for the track of concepts 'concepts'"),
        ({"concepts": {"red": 0}, "outside": None}, "outputs.loss_weight", "the track 'concepts' alone"),
        ({"concepts": {"red": "low"}}, "outputs.loss_weight", "low"),
        (
            {"name": "ids", "concepts": {"4294967296": 0}},
            "outputs.loss_weight.concepts.4294967296",
            "an unknown concept",
        ),
    ],
)
def test_what_is_no_such_weight(how: dict[str, Any], path: str, found: str, data: Path) -> None:
    with raises(ConfigError, path, found):
        weights(data, **how)


def test_a_name_that_means_two_ids(data: Path) -> None:
    datasets = {key: {"path": str(data / key)} for key in ("named", "other")}
    more = {"datasets": datasets, "allow_mixed_vocabularies": True}
    with raises(ConfigError, "outputs.loss_weight.concepts.red", "ids [0, 1]"):
        weights(data, more=more, concepts={"red": 0})


def test_concepts_of_a_track_of_numbers(data: Path, tmp_path: Path) -> None:
    (tmp_path / "in.jsonl").write_text(json.dumps({"text": TEXT, "concepts": 0.5}) + "\n")
    cl.build(
        tmp_path / "in.jsonl",
        tmp_path / "ds",
        tokenizer="bytes",
        number={"concepts": "f4"},
    )
    with raises(ConfigError, "outputs.loss_weight", "'concepts' is not a track of concepts"):
        weights(tmp_path, "ds", concepts={"red": 0})


def test_any_id_may_have_a_weight(data: Path) -> None:
    """Without a table as long as the ids are large."""
    assert weights(data, "ids", concepts={"1": 0, "4294967295": 0}) == expected(1, 1, 0, 0, 1, 1)
