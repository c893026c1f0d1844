"""Runs with `loader.balance`: steps keep their samples, ranks get equal work, resume and live weights are exact."""

import pickle

import numpy as np
import pytest

import conceptloader as cl
from conceptloader import trace
from conceptloader.errors import ConfigError, ResumeError
from conceptloader.testing import random_documents, write_dataset

STEP = 24


@pytest.fixture(scope="module")
def content(tmp_path_factory):
    folder = tmp_path_factory.mktemp("balance")
    web = write_dataset(folder / "web", random_documents(400, seed=1, mean_length=25), shards=2)
    code = write_dataset(folder / "code", random_documents(300, seed=2, mean_length=9))
    return {
        "seq_len": 64,
        "outputs": {"cu_seqlens": True},
        "datasets": {"web": {"path": web}, "code": {"path": code}},
        # Within a step, which then holds samples of both phases.
        "phases": [{"at": 0, "weights": {"web": 3, "code": 1}}, {"at": 40, "weights": {"web": 1, "code": 2}}],
        "skip": [{"at": 60, "count": 7}],
        "loader": {"balance": True},
    }


@pytest.fixture(params=["windows", "packs"])
def config(request, content):
    return {**content, "packing": {"bins": 8}} if request.param == "packs" else content


def plain(config):
    return {**config, "loader": {}}


def opened(config, rank=0, ranks=1, micro=1, **options):
    return cl.make_dataloader(
        config, dp_rank=rank, dp_size=ranks, micro_batch_size=micro, global_batch_size=STEP, **options
    )


def batches(loader, number):
    return [batch for _, batch in zip(range(number), loader, strict=False)]


def rows(found):
    each = zip(*(np.concatenate([one[name] for one in found]) for name in ("sample_index", "input_ids")), strict=True)
    return [(int(index), *tokens.tolist()) for index, tokens in each]


def cost(found):
    return sum(int((np.diff(one["cu_seqlens"].numpy().astype(np.int64)) ** 2).sum()) for one in found)


@pytest.mark.parametrize(("ranks", "micro"), [(1, 4), (2, 3), (3, 1), (8, 1)])
def test_a_step_keeps_its_samples_and_ranks_get_equal_work(config, ranks, micro):
    each, steps = STEP // (ranks * micro), 5
    stock = rows(batches(opened(plain(config), micro=STEP), steps))
    spread = {True: [0.0] * steps, False: [0.0] * steps}
    for balanced, chosen in ((True, config), (False, plain(config))):
        loaders = [opened(chosen, rank, ranks, micro) for rank in range(ranks)]
        found = [batches(loader, each * steps) for loader in loaders]
        for step in range(steps):
            mine = [one[step * each : (step + 1) * each] for one in found]
            samples = sorted(rows([one for each in mine for one in each]))
            assert samples == sorted(stock[step * STEP : (step + 1) * STEP])
            work = [cost(one) for one in mine]
            spread[balanced][step] = max(work) * ranks / sum(work)
        for loader in loaders:
            loader.close()
    if ranks in (2, 3):  # with as many ranks as samples of a step the heaviest sample decides
        assert max(spread[True]) < 1.05 < max(spread[False])


@pytest.mark.parametrize("at", [2 * STEP, 2 * STEP + 6])
def test_a_resumed_run_reads_what_the_run_would_have_read(config, at):
    whole = rows(batches(opened(config, 1, 2, 3), 16))
    loader = opened(config, 1, 2, 3)
    batches(loader, at // 6)
    again = opened(config, 1, 2, 3)
    again.load_state_dict(loader.state_dict())
    assert rows(batches(pickle.loads(pickle.dumps(again)), 16 - at // 6)) == whole[at // 2 :]


def test_between_steps_any_sizes_go_on_and_within_one_only_the_same(config):
    loader = opened(config, 1, 2, 3)
    batches(loader, 9)
    between, within = loader.state_dict_at(2 * STEP), loader.state_dict()
    third = [loader for rank in range(3) for loader in [opened(config, rank, 3, 1)]]
    for other in third:
        other.load_state_dict(between)
    stock = rows(batches(opened(plain(config), micro=STEP), 3))[2 * STEP :]
    assert sorted(row for other in third for row in rows(batches(other, 8))) == sorted(stock)
    changed = {**config, "phases": [*config["phases"], {"at": 56, "weights": {"code": 1}}]}
    for other in (opened(config, 0, 1, 3), opened(plain(config), 1, 2, 3), opened(changed, 1, 2, 3)):
        before = other.consumed_samples
        with pytest.raises(ResumeError, match=r"within a step, whose samples were dealt.*state_dict_at\(48\)"):
            other.load_state_dict(within)
        assert other.consumed_samples == before
    off = opened(plain(config), 1, 2, 3)
    batches(off, 9)
    with pytest.raises(ResumeError, match="within a step"):
        opened(config, 1, 2, 3).load_state_dict(off.state_dict())


def test_live_weights_hold_from_a_step_on_and_prefetched_steps_are_dealt_again(config):
    found = {}
    for key, chosen in (("balanced", config), ("plain", plain(config))):
        loaders = [opened(chosen, rank, 2, 3) for rank in range(2)]
        mine = [[], []]
        for rank, loader in enumerate(loaders):
            iterator = iter(loader)
            mine[rank] += [next(iterator) for _ in range(4)]
            if key == "balanced":
                with pytest.raises(ConfigError, match=r"within a step.*pass at=48"):
                    loader.set_weights({"web": 1}, at=30)
            assert loader.set_weights({"code": 5, "web": 1}) == STEP
            mine[rank] += [next(iterator) for _ in range(12)]
        found[key] = [sorted(row for one in mine for row in rows(one[k : k + 4])) for k in range(0, 16, 4)]
    assert found["balanced"] == found["plain"]


def test_within_a_last_step_only_a_run_that_ends_there_goes_on(content):
    """It is not dealt; with another end the step would be, and samples would be lost and repeated."""
    ends = {"num_samples": STEP + 15, "last_batch": "partial"}
    loader = opened(content, micro=3, **ends)
    batches(loader, 10)
    state = loader.state_dict()
    again = opened(content, micro=3, **ends)
    again.load_state_dict(state)
    rest = [row[0] for row in rows(list(again))]
    assert rest == list(range(30, STEP + 15))
    for other in ({}, {"num_samples": 3 * STEP}):
        with pytest.raises(ResumeError, match="within a step"):
            opened(content, micro=3, **other).load_state_dict(state)
    with pytest.raises(ResumeError, match="within a step"):  # its sizes do not divide the step
        cl.make_dataloader(content, micro_batch_size=5, global_batch_size=25).load_state_dict(
            opened(content, micro=3).state_dict_at(9)
        )


def test_positions_that_no_step_is_known_of_are_refused(content):
    loader = opened(content, micro=3)
    loader.load_state_dict(opened(content, micro=3).state_dict_at(2 * STEP))
    with pytest.raises(ConfigError, match="before this loader began"):
        loader.state_dict_at(STEP + 3)
    late = opened(content, micro=4, consumed_samples=8, epoch_samples=2 * STEP)
    with pytest.raises(ConfigError, match=r"epoch_samples.*within a step"):
        next(iter(late))


def test_refusals(content, tmp_path):
    with pytest.raises(ConfigError, match=r"loader\.balance: found true with attention across documents"):
        opened({**content, "outputs": {}})
    chat = write_dataset(tmp_path / "chat", random_documents(30, mean_length=20), mode="document")
    documents = {key: content[key] for key in ("seq_len", "outputs", "loader")}
    with pytest.raises(ConfigError, match=r"loader\.balance: found true with samples of one document each"):
        cl.make_dataloader({**documents, "datasets": {"chat": {"path": chat}}}, micro_batch_size=1)
    with pytest.raises(ConfigError, match=r"loader\.balance: .*SampleDataset"):
        cl.SampleDataset(content)[0]


def test_trace_and_locate_know_the_places(config, tmp_path):
    """What was in step s, and where a sample was trained, as the loaders of two launches saw it."""
    seen, state = {}, None
    for ranks, micro, first, stop in ((2, 3, 0, 3), (3, 1, 3, 6)):
        each = STEP // ranks // micro
        for rank in range(ranks):
            loader = opened(config, rank, ranks, micro)
            if state is not None:
                loader.load_state_dict(state)
            loader.log_start(tmp_path, first)
            for number, batch in enumerate(batches(loader, (stop - first) * each)):
                for slot, sample in enumerate(batch["sample_index"].tolist()):
                    seen[sample] = first + number // each, rank, number % each, slot
            loader.close()
        state = loader.state_dict()
    assert sorted(seen) == list(range(6 * STEP))
    run = trace.open_run(None, tmp_path)
    for sample, (step, rank, micro_batch, slot) in seen.items():
        assert [tuple(place) for place in run.places(sample)] == [(step, micro_batch, rank, slot)]
    rows = trace.query(run, "select sample, step, rank, micro_batch, row from samples", steps=(0, 6)).to_pylist()
    assert {row.pop("sample"): tuple(row.values()) for row in rows} == seen
