"""The example's concept head on the last pipeline stage, through the unmodified run_train.py. Needs NANOTRON_SRC."""

import shutil
from pathlib import Path

import numpy as np
import pytest

import conceptloader as cl
from conceptloader.format.read.dataset import open_dataset
from conceptloader.trace import open_run, query
from tests.nanotron import support
from tests.nanotron.plan import assert_seen

pytestmark = [pytest.mark.timeout(300), pytest.mark.slow]

MODEL_INPUTS = dict.fromkeys(
    ("concepts_span_index", "concepts_ids", "rating_scores", "sample_seed", "loss_weight"), "last"
)


@pytest.fixture
def with_concepts(dataset):
    options = {"model_inputs": MODEL_INPUTS}
    tracks = {name: {"layout": "padded"} for name in ("concepts", "rating")}
    outputs = {"sample_seed": True, "loss_weight": "weight"}
    return {**dataset, "tracks": tracks, "outputs": outputs, "nanotron": options, "metrics": {"losses": True}}


@pytest.mark.parametrize("way", ["pp", "dp"])
def test_trains(train, way, tmp_path, with_concepts, data, oracle, checkout):
    """Its loss falls; its tensors are those of the samples, on the last stage only; scores, weights and random numbers
    are those of plain PyTorch. Losses of samples are in a table.

    nanotron's sanity checks are on.
    """
    steps = 24
    for file in (Path(__file__).parent / "scored_llama.py", checkout / "examples/nanotron/concept_llama.py"):
        shutil.copy(file, tmp_path)
    options = {way: 2, "launch": ["--import", "scored_llama"], "path": tmp_path}
    result = train("run", dataset=with_concepts, steps=steps, interval=100, **options)
    layout = result.layout
    assert_seen(result, oracle, range(1, steps + 1))
    last = result.steps[-1]
    losses = [np.mean([output["concept_loss"] for output in last[step]["outputs"]]) for step in range(1, steps + 1)]
    assert np.mean(losses[-4:]) < 0.7 * np.mean(losses[:4])

    plain = {key: value for key, value in with_concepts.items() if key not in ("type", "nanotron", "metrics")}
    plain = {**plain, "seed": 42, "seq_len": support.SEQ_LEN}  # in plain PyTorch
    for dp in range(layout.dp):
        part = iter(cl.make_dataloader(plain, dp_rank=dp, dp_size=layout.dp, micro_batch_size=2, scheme="contiguous"))
        for batch, expected in zip(result.steps[dp if layout.dp > 1 else -1][1]["batches"], part, strict=False):
            for name in ("rating_scores", "sample_seed", "loss_weight"):
                assert batch[name] == expected[name].tolist(), name
    open_datasets = {name: open_dataset(path) for name, path in data.items()}
    for rank, recorded in enumerate(result.steps):
        pp, dp, _ = layout.coordinates(rank)
        for step in (1, steps):
            for m, batch in enumerate(recorded[step]["batches"]):
                if pp != layout.pp - 1:
                    assert all(batch[name] == {"owner": layout.pp - 1} for name in MODEL_INPUTS)
                    continue
                first = ((step - 1) * 2 + m) * 2 * layout.dp + 2 * dp
                for row, (name, _, window) in enumerate(oracle.samples(range(first, first + 2))):
                    _assert_concepts(batch, row, open_datasets[name], window * support.SEQ_LEN)
    for step in (1, steps):
        _assert_losses(result, tmp_path / "c", 4 * layout.dp, step)


def _assert_concepts(batch, row, dataset, start):
    """Row of the batch against the spans that the dataset itself holds."""
    spans = dataset.spans("concepts", start, start + support.SEQ_LEN)
    index = np.full(support.SEQ_LEN, -1)
    for k, (a, b) in enumerate(zip(spans.start, spans.end, strict=True)):
        index[a:b] = k
    assert batch["concepts_span_index"][row] == index.tolist()
    ids = [[i for i in slot if i >= 0] for slot in batch["concepts_ids"][row]]
    assert ids[: len(spans)] == [ids.tolist() for ids in spans.decode()]
    assert not any(ids[len(spans) :])


def _assert_losses(result, checkpoints, batch, step):
    """The mean of the samples of a step is the loss of the language model in it."""
    rows = query(open_run(log=checkpoints), "from losses", steps=(step - 1, step)).to_pylist()
    assert sorted(row["sample"] for row in rows) == [*range((step - 1) * batch, step * batch)]
    mean = sum(row["loss"] for row in rows) / sum(row["tokens"] for row in rows)
    heads = [output["concept_loss"] for rank in result.steps for output in rank[step]["outputs"] if output]
    assert mean == pytest.approx(result.losses()[step] - 0.5 * np.mean(heads), abs=0.002)
