"""Who observes a run gets a note of every micro batch, in order, whatever is prefetched, raised, resumed or changed."""

import copy
import time
from typing import ClassVar

import pytest

import conceptloader as cl
from conceptloader.loader.torch.trained import TrainedLoader
from conceptloader.run.observer import OBSERVERS


class Seen:
    """Notes are the samples of a batch. It fails once, at the position `fails`."""

    made: ClassVar[list["Seen"]] = []
    fails: ClassVar[int] = -1

    def __init__(self, run):
        self.run, self.told = run, []
        self.made.append(self)

    def begins(self, consumed, track):
        self.told.append(("begins", consumed))
        return True

    def read(self, batch):
        samples = batch["sample_index"].tolist()
        time.sleep(samples[0] % 5 * 0.002)  # late ones are overtaken
        return [*samples, int(batch["input_ids"].sum())]

    def yielded(self, position, consumed, note, waited_s, ready):
        if consumed == Seen.fails:
            Seen.fails = -1
            raise OSError("the disk is full")
        assert waited_s >= 0 <= ready
        self.told.append((consumed, *note))


@pytest.fixture(autouse=True)
def _observed():
    made = Seen
    OBSERVERS.append(made)
    yield
    OBSERVERS.remove(made)
    Seen.made, Seen.fails = [], -1


@pytest.fixture
def config(config):
    return {**config, "loader": {"num_threads": 3, "prefetch_batches": 6}}


def taken(loader, kept, stop=10**9):
    """Train to a position. A batch is kept as the note of it should be."""
    for batch in loader:
        samples = batch["sample_index"].tolist()
        kept.append((max(samples) + 1, *samples, int(batch["input_ids"].sum())))
        if hasattr(loader, "acknowledge"):
            loader.acknowledge()
        if kept[-1][0] >= stop:
            return


@pytest.mark.parametrize("make", [cl.batches, cl.make_dataloader, TrainedLoader])
def test_every_note_in_order(make, config, tmp_path):
    sizes = {"micro_batch_size": 2, "global_batch_size": 4, "num_samples": 48}
    loader, kept = make(config, **sizes, batch_transform=lambda batch: batch), []
    loader.log_start(tmp_path, 0)
    taken(loader, kept, 12)
    Seen.fails = 18
    with pytest.raises(OSError, match="full"):
        taken(loader, kept)
    assert loader.consumed_samples == 16
    loader.set_weights({"web": 1}, at=24)
    taken(loader, kept, 32)
    (seen,) = Seen.made
    assert len(kept) == 16
    assert [each for each in seen.told if isinstance(each[0], int)] == kept
    begins = [("begins", 0), ("begins", 12), ("begins", 16)]
    assert [each for each in seen.told if isinstance(each[0], str)] == begins
    loader.load_state_dict(loader.state_dict())
    kept.clear()
    taken(loader, kept)
    assert Seen.made == [seen, Seen.made[-1]], "another, from where the run was resumed"
    assert Seen.made[-1].told == [("begins", 32), *kept]
    assert kept[-1][0] == 48


def test_a_copy_has_an_observer_of_its_own(config):
    loader = cl.batches(config, micro_batch_size=8, num_samples=16)
    taken(loader, [], 8)
    taken(copy.deepcopy(loader), [])
    assert [len(seen.told) for seen in Seen.made] == [2, 2]
