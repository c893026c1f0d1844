"""examples/pytorch/fim.py: each document's parts are there, once, as a slow definition has them, after any resume."""

from itertools import pairwise
from random import Random

import numpy as np
import pytest
import torch

import conceptloader as cl
from tests.corpora.small import written
from tests.loader.test_random_examples import example

SIZE, EOS, PREFIX, SUFFIX, MIDDLE = 32, 0, 101, 102, 103
MASKED = {"mask_document_boundaries": True, "loss_on_eos": False, "ignore_index": -7}
KINDS = {
    "windows": {"outputs": {}},
    "restarts": {"outputs": {"position_ids": "document", **MASKED}},
    "packs": {"packing": {"bins": 4}, "outputs": {}},
}


@pytest.fixture(scope="module")
def data(tmp_path_factory):
    """Every third document has tokens without loss."""
    rng, documents = np.random.default_rng(4), []
    for number in range(300):
        size = int(rng.integers(2, 41))
        mask = rng.random(size) < 0.7 if number % 3 == 0 else np.ones(size)
        documents.append(([*rng.integers(1, 24, size - 1).tolist(), EOS], {}, "", {"loss_mask": mask}))
    kind = {"mode": "token-stream", "fields": {"loss_mask": "u1"}}
    tokenizer = cl.writing.Tokenizer(name="code", vocab_size=24, eos_id=EOS)
    path = tmp_path_factory.mktemp("fim") / "code"
    return str(written(path, documents[:150], documents[150:], tokenizer=tokenizer, **kind))


@pytest.fixture
def fim(checkout):
    return example(checkout, "fim")


def config_of(data, kind, **outputs):
    given = KINDS[kind]
    outputs = {"cu_seqlens": True, "sample_seed": True, **given["outputs"], **outputs}
    return {"seq_len": SIZE, "seed": 3, "datasets": {"code": {"path": data}}, **given, "outputs": outputs}


def moved(document, random, rate, spm_rate):
    """A document, of each token its id and whether it is predicted with loss: its end, EOS, stays where it is."""
    end = document[-1:] if document[-1][0] == EOS else []
    body = document[: len(document) - len(end)]
    if len(body) < 2 or any(loss != 1 for _, loss in body[1:]) or random.random() >= rate:
        return document
    spm = random.random() < spm_rate
    a, b = sorted(int(random.random() * (len(body) + 1)) for _ in range(2))
    prefix, middle, suffix = ([token for token, _ in part] for part in (body[:a], body[a:b], body[b:]))
    if spm:
        order = [PREFIX, SUFFIX, *suffix, MIDDLE, *prefix, *middle]
    else:
        order = [PREFIX, *prefix, SUFFIX, *suffix, MIDDLE, *middle]
    return [(order[0], document[0][1]), *((token, 1.0) for token in order[1:]), *end]


def slow(batch, rate, spm_rate, restarts):
    """Of each sample of a batch: its arrays, and where its documents begin."""
    rows = {name: batch[name].tolist() for name in ("input_ids", "labels", "loss_mask", "sample_seed")}
    for row, (inputs, labels, loss, seed) in enumerate(zip(*rows.values(), strict=True)):
        borders = [edge - row * SIZE for edge in batch["cu_seqlens"].tolist() if 0 <= edge - row * SIZE <= SIZE]
        tokens, stream, begins, places = list(zip(inputs, [-1.0, *loss], strict=False)), [], [], []
        for number, (a, b) in enumerate(pairwise(borders)):
            document = moved(tokens[a:b], Random(seed * 2**20 + number), rate, spm_rate)
            begins += [len(stream)] if len(stream) < SIZE else []
            places += range(len(document))
            stream += document
        stream = [*stream, (labels[-1], loss[-1])][: SIZE + 1]
        yield {
            "input_ids": [token for token, _ in stream[:-1]],
            "labels": [token if trained else -100 for token, trained in stream[1:]],
            "loss_mask": [trained for _, trained in stream[1:]],
            "position_ids": places[:SIZE] if restarts else [*range(SIZE)],
            "begins": begins,
        }


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize(("rate", "spm_rate"), [(0, 0.5), (0.6, 0.4), (1, 1)])
def test_samples_are_those_of_a_slow_definition(data, fim, kind, rate, spm_rate):
    config = config_of(data, kind)
    transform = fim.FillInMiddle(PREFIX, SUFFIX, MIDDLE, EOS, rate, spm_rate)
    samples = moves = 0
    plain = cl.make_dataloader(config, micro_batch_size=7, num_samples=98)
    for before, found in zip(
        plain, cl.make_dataloader(config, micro_batch_size=7, num_samples=98, batch_transform=transform), strict=True
    ):
        borders = [0]
        for row, wanted in enumerate(slow(before, rate, spm_rate, kind != "windows")):
            borders += [row * SIZE + begin for begin in (*wanted.pop("begins")[1:], SIZE)]
            for name, values in wanted.items():
                assert found[name][row].tolist() == values, (name, row)
                assert found[name].dtype == before[name].dtype
            samples, moves = samples + 1, moves + wanted["input_ids"].count(PREFIX)
        assert found["cu_seqlens"].tolist() == borders
        assert found["cu_seqlens"].dtype == before["cu_seqlens"].dtype
        assert found["max_seqlen"] == np.diff(borders).max()
        assert found.keys() == before.keys()
        assert torch.equal(found["sample_index"], before["sample_index"])
    assert samples == 98
    assert (moves > 40) == (rate > 0)
