"""What was in step s of a balanced run, and where a sample was trained: as the loaders of two launches saw it."""

import pytest
import yaml

import conceptloader as cl
from conceptloader import trace
from conceptloader.testing import random_documents, write_dataset

STEP = 12


@pytest.fixture
def config(tmp_path):
    web = write_dataset(tmp_path / "web", random_documents(300, seed=1, mean_length=25), shards=2)
    content = {
        "seq_len": 64,
        "packing": {"bins": 8},
        "outputs": {"cu_seqlens": True},
        "datasets": {"web": {"path": web}},
        "loader": {"balance": True},
    }
    (tmp_path / "run.yaml").write_text(yaml.safe_dump(content))
    return tmp_path / "run.yaml"


def train(config, log, ranks, micro, first, stop, state=None):
    """(step, rank, micro batch, slot) by sample, of steps [first, stop); the state after them."""
    seen = {}
    for rank in range(ranks):
        loader = cl.make_dataloader(config, dp_rank=rank, dp_size=ranks, micro_batch_size=micro, global_batch_size=STEP)
        if state is not None:
            loader.load_state_dict(state)
        loader.log_start(log, first)
        each = STEP // ranks // micro
        for number, batch in zip(range((stop - first) * each), loader, strict=False):
            for slot, sample in enumerate(batch["sample_index"].tolist()):
                seen[sample] = first + number // each, rank, number % each, slot
        loader.close()
    return seen, loader.state_dict()


def test_trace_and_locate_know_the_places(config, tmp_path):
    log = tmp_path / "run"
    before, state = train(config, log, 2, 3, 0, 3)
    after, _ = train(config, log, 3, 1, 3, 6, state)
    seen = {**before, **after}
    assert sorted(seen) == list(range(6 * STEP))
    run = trace.open_run(None, log)
    for sample, (step, rank, micro_batch, slot) in seen.items():
        assert [tuple(place) for place in run.places(sample)] == [(step, micro_batch, rank, slot)]
    rows = trace.query(run, "select sample, step, rank, micro_batch, row from samples", steps=(0, 6)).to_pylist()
    assert {row.pop("sample"): tuple(row.values()) for row in rows} == seen
    planned = trace.open_run(config)
    assert planned.history is None
