"""make_dataloader: which samples, in which order, and what its state counts."""

import itertools
import shutil
from functools import partial

import pytest
import torch

import conceptloader as cl
from conceptloader.errors import ConfigError, FormatError, ReadError, UnboundedLoaderError
from conceptloader.loader.torch.micro_batches import MicroBatches
from tests.corpora.small import written
from tests.raises import raises


def take(loader, batches):
    return [batch["sample_index"].tolist() for batch in itertools.islice(loader, batches)]


@pytest.mark.parametrize(("rank", "num_samples", "told"), [(0, None, 1), (0, 24, 0), (1, None, 0)])
def test_a_later_batch_that_cannot_be_dealt_out_is_told_at_the_start(config, caplog, rank, num_samples, told):
    sizes = cl.adapters.BatchSchedule(((0, 12), (24, 15), (39, 18)))
    loader = cl.make_dataloader(
        config, dp_rank=rank, dp_size=2, micro_batch_size=3, global_batch_size=sizes, num_samples=num_samples
    )
    with loader:
        take(loader, 1)
    found = [record.getMessage() for record in caplog.records if "global_batch_size" in record.getMessage()]
    assert len(found) == told
    assert all(
        "15 samples from sample 24 on are not a whole number of micro batches of 3 on 2 ranks" in f for f in found
    )
    if num_samples is None:
        with loader, raises(ConfigError, "global batch size", "15"):
            take(loader, 5)


@pytest.mark.parametrize(("at", "told"), [(36, []), (41, ["at 41 is within step 3, which begins at sample 36"])])
def test_steps_that_were_meant_as_samples_are_told(config, caplog, at, told):
    given = {**config, "phases": [{"at": at, "weights": {"a": 1}}]}
    with cl.make_dataloader(given, micro_batch_size=3, global_batch_size=12) as loader:
        take(loader, 1)
    found = [record.getMessage() for record in caplog.records if "phases" in record.getMessage()]
    assert len(found) == len(told)
    assert all(part in message for part, message in zip(told, found, strict=True))


def test_a_loss_mask_that_something_needs_cannot_be_switched_off(config, data):
    without = {"seq_len": 16, "outputs": {"loss_mask": False}}
    excluded = {**config, **without, "exclude": [{"dataset": "a", "tokens": [0, 1]}]}
    fields = {**without, "datasets": {"a": {"path": str(data / "pairs")}}}
    for given, reason in [(excluded, "excluded documents"), (fields, "field loss_mask")]:
        with pytest.raises(ConfigError, match=f"outputs.loss_mask: found false, but dataset a has .*{reason}"):
            cl.make_dataloader(given, micro_batch_size=4)


def test_a_batch_is_not_written_to_while_it_is_held(config):
    with cl.make_dataloader(config, micro_batch_size=4) as loader:
        held = [batch["input_ids"] for batch in itertools.islice(loader, 40)]
    with cl.make_dataloader(config, micro_batch_size=4) as loader:
        for kept, batch in zip(held, loader, strict=False):
            assert torch.equal(kept, batch["input_ids"])


def test_spans_that_have_no_room_are_an_error_at_launch(config):
    config["tracks"]["concepts"]["max_spans"] = 1
    with raises(ConfigError, "max_spans"):
        cl.make_dataloader(config, micro_batch_size=1)


def test_a_start_within_a_step_is_logged_as_that_step(config, tmp_path):
    """The rest of it is trained as the step that it belongs to, and the next ones are as long as the log says."""
    loader = cl.make_dataloader(config, micro_batch_size=4, global_batch_size=12)
    take(loader, 4)
    resumed = cl.make_dataloader(config, micro_batch_size=4, global_batch_size=12)
    resumed.load_state_dict(loader.state_dict())
    resumed.log_start(tmp_path, step=1)
    history = cl.adapters.RunLog(tmp_path).history
    assert [history.range_of(step) for step in (1, 2)] == [(12, 24), (24, 36)]
    assert resumed.steps is None
    assert take(resumed, 2) == [[16, 17, 18, 19], [20, 21, 22, 23]]
    assert resumed.steps == 2


@pytest.mark.parametrize("damage", ["missing", "shorter"])
@pytest.mark.parametrize("entry", ["make_dataloader", "batches", "SampleDataset", "GrainSource"])
def test_all_files_are_looked_at_when_starting(config, tmp_path, monkeypatch, damage, entry):
    """Those of datasets that are read later, too; one rank looks for all."""
    by_index = entry in ("SampleDataset", "GrainSource")
    opened = partial(getattr(cl, entry), **({} if by_index else {"micro_batch_size": 2}))
    shutil.copytree(config["datasets"]["b"]["path"], tmp_path / "later")
    config["datasets"] = {"a": {**config["datasets"]["a"], "weight": 1}, "b": {"path": str(tmp_path / "later")}}
    file = tmp_path / "later" / "00000.concepts.data"
    opened(config)
    if damage == "missing":
        file.unlink()
    else:
        file.write_bytes(file.read_bytes()[:-4])
    with pytest.raises((ReadError, FormatError), match=r"later/00000\.concepts\.data"):
        opened(config)
    monkeypatch.setenv("RANK", "1")
    opened(config, **({} if by_index else {"dp_size": 2, "dp_rank": 1}))
    ends = {"phases": [*config["phases"], {"at": 80, "weights": {"a": 1}}], "skip": [{"at": 20, "count": 20}]}
    blend = cl.open_blend({**config, **ends})
    with pytest.raises((ReadError, FormatError)):
        blend.look_ahead(79)
    blend.look_ahead(80)  # b takes no part any more


def test_files_of_vocabularies_are_looked_at_when_starting(tmp_path):
    documents, tracks = [(range(40), {"animals": [(0, 9, [1])]})], {"animals": {"vocabulary": ["cat", "dog"]}}
    file = written(tmp_path / "a", documents, tracks=tracks) / "animals.vocabulary.json"
    config = {"seq_len": 8, "datasets": {"a": {"path": str(tmp_path / "a")}}, "tracks": {"animals": {}}}
    cl.make_dataloader(config, micro_batch_size=1)
    file.write_bytes(file.read_bytes()[:-1])
    with raises(FormatError, str(file), "bytes"):
        cl.make_dataloader(config, micro_batch_size=1)
    file.unlink()
    with raises(ReadError, str(file)):
        cl.make_dataloader(config, micro_batch_size=1)


@pytest.mark.parametrize("entry", [cl.SampleDataset, cl.GrainSource])
def test_tokens_in_no_sample_are_warned_of_by_index_too(config, caplog, entry):
    config.update(packing={"overflow": "truncate"}, seq_len=8)
    entry(config)
    assert [one for one in caplog.messages if "of the tokens are in no sample" in one]


def test_samples_of_a_run_that_are_in_no_step_are_named(config, caplog):
    for options in ({"num_samples": 64}, {"num_samples": 66, "last_batch": "partial"}, {}, {"num_samples": 66}):
        assert not [one for one in caplog.messages if "in no step" in one]
        next(iter(cl.make_dataloader(config, micro_batch_size=8, **options)))
    assert [one for one in caplog.messages if "num_samples: the last 2 of 66 samples are in no step" in one]


def test_micro_batches_of_trainers_leave_out_what_is_no_whole_group():
    """The batch sampler of adapters: all ranks together read the order."""
    partition = cl.adapters.Partition(micro_batch_size=3, dp_size=2, scheme="contiguous")
    for total in (17, 20, 22):
        ranks = [MicroBatches(partition, rank, 5, total) for rank in range(2)]
        assert [len(rank) for rank in ranks] == [2, 2]
        assert [n for rows in zip(*ranks, strict=True) for row in rows for n in row] == list(range(5, 17))
    with raises(UnboundedLoaderError):
        len(MicroBatches(partition, 0, 5))
