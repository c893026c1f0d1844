"""Twins with other data: documents replaced by others of equal length, and a concept without its annotations."""

import dataclasses
import logging
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import conceptloader as cl
from conceptloader.errors import ResumeError
from conceptloader.testing import RawDocument, random_documents, write_dataset
from tests.raises import raises

STEPS, BATCH, RARE = 60, 4, 20


def replaced(documents: list[RawDocument]) -> list[RawDocument]:
    """Two of them by others of equal length."""
    return [
        dataclasses.replace(one, tokens=[*(1 + (token + 1) % 900 for token in one.tokens[:-1]), 0])
        if number in (7, 30)
        else one
        for number, one in enumerate(documents)
    ]


def without_concept(documents: list[RawDocument]) -> list[RawDocument]:
    """Of which only the last ones have it."""
    spans = ([(a, b, [c for c in ids if c != RARE]) for a, b, ids in one.spans["concepts"]] for one in documents)
    return [dataclasses.replace(one, spans={"concepts": kept}) for one, kept in zip(documents, spans, strict=True)]


def with_concept(documents: list[RawDocument]) -> list[RawDocument]:
    spans = [(a, b, [*ids, RARE]) for a, b, ids in documents[17].spans["concepts"]]
    return [*documents[:17], dataclasses.replace(documents[17], spans={"concepts": spans}), *documents[18:]]


def batches(loader: Any, count: int) -> list[dict[str, Any]]:
    found = []
    for batch, _ in zip(loader, range(count), strict=False):
        found.append({key: np.array(value, copy=True) for key, value in batch.items() if hasattr(value, "shape")})
    return found


def equal(one: dict[str, Any], two: dict[str, Any]) -> bool:
    return one.keys() == two.keys() and all(np.array_equal(value, two[key]) for key, value in one.items())


@pytest.mark.parametrize(("change", "allow"), [
    (replaced, ["datasets.web.stream_fingerprint"]), (without_concept, []),
])  # fmt: skip
def test_steps_that_differ_and_a_resume_from_before(
    tmp_path: Path, change: Any, allow: list[str], caplog: pytest.LogCaptureFixture
) -> None:
    documents, names = with_concept(random_documents(60, seed=1)), {"concepts": [f"concept-{k}" for k in range(21)]}
    paths = [
        write_dataset(tmp_path / name, some, shards=4, vocabularies=names)
        for name, some in (("web", documents), ("twin", change(documents)))
    ]
    config, other = (
        {
            "seq_len": 32,
            "datasets": {"web": {"path": path}},
            "tracks": {"concepts": {"max_spans": 40, "max_concepts": 8}},
        }
        for path in paths
    )
    loader = cl.batches(config, micro_batch_size=BATCH)
    whole, twin = batches(loader, STEPS), batches(cl.batches(other, micro_batch_size=BATCH), STEPS)
    differ = [step for step in range(STEPS) if not equal(whole[step], twin[step])]
    assert 0 < len(differ) < STEPS
    first = differ[0]
    resumed = cl.batches(other, micro_batch_size=BATCH)
    with caplog.at_level(logging.WARNING):
        if allow:
            with raises(ResumeError, found=allow[0]):
                resumed.load_state_dict(loader.state_dict_at(first * BATCH))
        resumed.load_state_dict(loader.state_dict_at(first * BATCH), allow_changed=allow)
    assert "tracks have changed" in caplog.text
    assert ("stream_fingerprint" in caplog.text) == (change is replaced)
    tail = batches(resumed, STEPS - first)
    assert all(map(equal, tail, twin[first:]))
    assert all(map(equal, whole[:first], twin[:first]))
