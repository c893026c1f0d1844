"""One YAML over adopted and native datasets trains in plain PyTorch and under both adapters, on the planned samples."""

import numpy as np
import pytest

from tests.corpora import blended
from tests.corpora.blended import SEQ_LEN, VOCABULARY, topics_of
from tests.megatron import launching, pretraining
from tests.megatron.conftest import pretrain
from tests.nanotron import support
from tests.nanotron.conftest import nanotron_src
from tests.nanotron.plan import assert_seen

__all__ = ["nanotron_src", "pretrain"]  # the fixtures
pytestmark = pytest.mark.timeout(600)
BATCH, MICRO = 8, 2


@pytest.fixture(scope="module")
def data(tmp_path_factory):
    return blended.write(tmp_path_factory.mktemp("data"))


@pytest.mark.usefixtures("nanotron_src")
@pytest.mark.slow
def test_nanotron_run_train(data, tmp_path, checkout):
    """The unmodified script, with the example's concept head."""
    consume = {"concepts_span_index": "last", "concepts_ids": "last"}
    section = {"type": "conceptloader", "config": str(data.config), "nanotron": {"model_inputs": consume}}
    options = {"launch": ["--import", "concept_llama"], "path": checkout / "examples/nanotron", "interval": 100}
    result = support.train(tmp_path, "run", dataset=section, dp=2, steps=3, **options)
    assert_seen(result, data, range(1, 4))
    for rank, recorded in enumerate(result.steps):
        for k, batch in enumerate(batch for step in recorded.values() for batch in step["batches"]):
            first = (2 * k + rank) * MICRO
            topics = topics_of(batch["concepts_span_index"], batch["concepts_ids"])
            assert np.array_equal(topics, data.topics(range(first, first + MICRO)))


def assert_megatron(run, data, planned):
    """planned: the samples of each micro batch, by rank."""
    assert sorted(run.taken) == sorted(planned)
    for rank, lines in run.taken.items():
        assert run.samples(rank) == planned[rank]
        for samples, line in zip(planned[rank], lines, strict=True):
            assert line["dataset_id"] == data.members(samples)
            assert line["tokens"] == data.tokens(samples)[:, :-1].flatten().tolist()
            span_index, ids = (np.array(line[f"concepts_{name}"]) for name in ("span_index", "ids"))
            found = topics_of(span_index.reshape(MICRO, SEQ_LEN), ids.reshape(MICRO, -1, 1))
            assert np.array_equal(found, data.topics(samples))


@pretraining.needs_checkout[0]
@pytest.mark.slow
def test_megatron_pretrain_gpt(pretrain, tmp_path):
    """The unmodified script, on a corpus that the unmodified tools/preprocess_data.py made."""

    def preprocess(folder, documents):
        lines = [f'{{"text": "{" ".join(map(str, document))}"}}\n' for document in documents]
        (folder / "m.jsonl").write_text("".join(lines))
        command = [str(pretrain.checkout / "tools/preprocess_data.py"), "--input", str(folder / "m.jsonl")]
        # Not --append-eod: which number a NullTokenizer takes for it differs between versions.
        command += ["--output-prefix", str(folder / "m"), "--workers", "1"]
        command += ["--tokenizer-type", "NullTokenizer", "--vocab-size", str(VOCABULARY)]
        made = launching.torchrun(command, tmp_path / "preprocess", processes=1, checkout=pretrain.checkout)
        assert made.returncode == 0, made.output[-4000:]
        return str(folder / "m_text_document")

    (tmp_path / "data").mkdir()
    data = blended.write(tmp_path / "data", megatron=preprocess)
    accepted = ("--conceptloader-allow-changed", "tokenizer")  # Megatron's has another end of documents
    run = pretrain("run", pretraining.DP2, *accepted, config=data.config)
    assert sorted(run.losses) == list(range(1, pretraining.STEPS + 1))
    assert_megatron(run, data, {rank: pretraining.DP2.planned(rank) for rank in range(2)})
