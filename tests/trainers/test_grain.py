"""grain and JAX: our order through grain's own iterators, exactly resumed by other numbers of processes."""

import json
from collections import Counter

import pytest

import conceptloader as cl
from tests.trainers.matrix import configs

grain = pytest.importorskip("grain", reason="grain is not installed: `make trainers` has it")
jax = pytest.importorskip("jax", reason="jax is not installed: `make trainers` has it")

flags = pytest.importorskip("absl.flags", reason="of grain's requirements")
flags.FLAGS.mark_as_parsed()  # as absl.app.run does, which worker processes of grain rely on
BATCH = 12


def process(source, rank, ranks, workers):
    """The batches of one process of a run."""
    dataset = grain.MapDataset.source(source)[rank::ranks].batch(BATCH // ranks)
    read = grain.ReadOptions(num_threads=2, prefetch_buffer_size=4)
    batches = dataset.to_iter_dataset(read)
    return batches.mp_prefetch(grain.MultiprocessingOptions(num_workers=workers)) if workers else batches


@pytest.mark.parametrize("workers", [0, 2])
def test_resumed_by_other_processes(tmp_path, workers):
    config, _ = configs(tmp_path / "data")
    total, samples, state = 7 * BATCH, Counter(), None

    @jax.jit
    def tokens_of(ids):
        return ids.astype("float32").sum()

    plain = cl.make_dataloader(config, micro_batch_size=BATCH)
    expected = [float(batch["input_ids"].sum()) for batch, _ in zip(plain, range(7), strict=False)]
    found = [0.0] * 7
    for ranks, first, stop in ((2, 0, 3), (3, 3, 5), (1, 5, 7)):
        for rank in range(ranks):
            source = cl.GrainSource(config, total)
            if state is not None:
                source.load_state_dict(state)
            for step, batch in zip(range(first, stop), process(source, rank, ranks, workers), strict=False):
                samples.update(batch["sample_index"].tolist())
                found[step] += float(tokens_of(batch["input_ids"]))
                assert set(batch["sample_index"]) <= set(range(step * BATCH, (step + 1) * BATCH))
        state = json.loads(json.dumps(source.state_dict_at((stop - first) * BATCH)))
    assert samples == Counter(range(total))
    assert found == expected
    plain.load_state_dict(state)
    assert plain.consumed_samples == total
    plain.close()
