"""Random configurations on random ranks, stopped and resumed, against a brute-force reading of the documentation.

On few descriptors, with late storage, into memory that was written to.
"""

import json
import logging
import pickle
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from fractions import Fraction
from functools import lru_cache
from itertools import pairwise, takewhile
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import conceptloader as cl
from conceptloader.batch import reader
from conceptloader.order import reference
from conceptloader.storage.handles import HANDLES
from conceptloader.testing.controllers import Greedy
from tests.conftest import Tally
from tests.oracle.corpora import CONCEPTS, DOCUMENTS, FIELDS, STREAMS, VIEWS, write_all
from tests.oracle.data import read
from tests.oracle.imported import CHATS, IMPORTED, write_imported
from tests.oracle.samples import Oracle, Sample, excluded, meaning
from tests.scale import SOAK, scaled

BATCH = 12
TRACKS = ("concepts", "scored", "numbers", "notes")
RULES = (((0, BATCH),), ((0, BATCH), (3 * BATCH, 2 * BATCH)), ((0, 2 * BATCH), (4 * BATCH, BATCH)))


@pytest.fixture(scope="module")
def corpora(tmp_path_factory: pytest.TempPathFactory) -> Any:
    @lru_cache(None)
    def written(seed: int) -> Path:
        folder = write_all(tmp_path_factory.mktemp(f"seed-{seed}-"), seed)
        write_imported(folder, seed)
        return folder

    return written


def some(draw: st.DrawFn, values: Any, **how: Any) -> Any:
    return draw(st.lists(st.sampled_from(sorted(values)), unique=True, **how))


@st.composite
def weights(draw: st.DrawFn, names: list[str]) -> dict[str, Any]:
    number = st.one_of(st.integers(1, 1000), st.sampled_from([0.1, 0.7, 0.01, 3.25]))
    return {name: draw(number) for name in some(draw, names, min_size=1)}


@st.composite
def configurations(draw: st.DrawFn, folder: Path, imported: bool = False) -> dict[str, Any]:
    """imported: the folder has the datasets of `write_imported`, too."""
    kind = draw(st.sampled_from(["windows", "documents", "packs"]))
    kinds = {"windows": STREAMS, "documents": DOCUMENTS, "packs": (*STREAMS[:-1], *DOCUMENTS)}[kind]
    if imported and draw(st.booleans()):
        more = {"windows": IMPORTED, "documents": CHATS, "packs": (*IMPORTED, *CHATS)}[kind]
        kinds = draw(st.sampled_from([more, (*kinds, *more)]))
    paths = {
        f"{name[::-1]}.{k}": name
        for k, name in enumerate(draw(st.lists(st.sampled_from(kinds), min_size=1, max_size=4)))
    }
    ends = {end for path in paths.values() for _, end in read(folder / path).shards}
    aligned = [n for n in range(1, 41) if any(end and end % n == 0 for end in ends)]  # samples end where shards do
    config: dict[str, Any] = {
        "seed": draw(st.integers(-5, 2**70)),
        "seq_len": draw(st.integers(1, 40) | st.sampled_from(aligned or [1])),
        "datasets": {name: {"path": str(folder / path)} for name, path in paths.items()},
        "loader": {"prefetch_batches": draw(st.integers(0, 3)), "num_threads": draw(st.integers(1, 3))},
        "outputs": {name: draw(st.booleans()) for name in ("document_ids", "cu_seqlens", "sample_seed", "loss_on_eos")},
    }
    if imported:
        config |= {"allow_mixed_tokenizers": True, "allow_mixed_vocabularies": True}
    if kind == "packs":
        config["packing"] = {
            "bins": draw(st.sampled_from([2, 2, 3, 6])),
            "overflow": draw(st.sampled_from(["split", "truncate"])),
        }
    for name in some(draw, paths):
        low, high = sorted((draw(st.floats(0, 1)), draw(st.floats(0, 1))))
        trial = {**config["datasets"][name], "split": [low, high]}
        if low < high and min(Oracle({**config, "datasets": {name: trial}}).sizes.values()) > 0:
            config["datasets"][name] = trial
    if imported and "flat" not in paths.values() and draw(st.integers(0, 3)) == 0:
        low, high = sorted((draw(st.floats(0, 1)), draw(st.floats(0, 1))))
        trial = {**config, "split_documents": [low, high]}
        if low < high and min(Oracle(trial).sizes.values()) > 0:
            config = trial
    sizes = Oracle(config).sizes
    for name in [name for name, size in sizes.items() if size < 1]:
        del config["datasets"][name], paths[name]
    if not paths:
        return draw(configurations(folder, imported))
    config["order"] = draw(st.sampled_from(["shuffled", "shuffled", "sequential"]))
    if config["order"] != "sequential":
        config["block"] = draw(st.sampled_from([1, 2, 7, 64]))
        for name, weight in draw(weights(list(paths))).items():
            config["datasets"][name]["weight"] = weight
        if draw(st.integers(0, 4)) == 0:
            for dataset in config["datasets"].values():
                dataset.pop("weight", None)
            config["weights"] = "by_size"
        config["temperature"] = draw(st.sampled_from([1.0, 1.0, 2.0, 0.5]))
        starts = sorted(draw(st.lists(st.integers(1, 150), unique=True, max_size=3)))
        config["phases"] = [{"start": start, "weights": draw(weights(list(paths)))} for start in starts]
        named = {name for phase in config["phases"] for name in phase["weights"]}
        for name in set(paths) - named if "weights" not in config else ():
            config["datasets"][name].setdefault("weight", 1)
        at = sorted(draw(st.lists(st.integers(0, 150), max_size=3)))
        config["skip"] = [{"at": t, "count": draw(st.integers(1, 100))} for t in at]
    config["exclude"] = []
    for name in some(draw, paths):
        data = read(folder / paths[name])
        first = draw(st.integers(0, len(data.tokens) - 1))
        some_tokens = st.builds(lambda end, first=first: (first, end), st.integers(first + 1, len(data.tokens)))
        whole_shard = st.sampled_from([(a, b) for a, b in data.shards if a < b] or [(0, 1)])
        config["exclude"].append({"dataset": name, "tokens": list(draw(some_tokens | whole_shard))})
    config["exclude"] += draw(exclusions(folder, paths))
    add_outputs(draw, config, paths)
    return config


@st.composite
def exclusions(draw: st.DrawFn, folder: Path, paths: dict[str, str], start: int = 0) -> list[dict[str, Any]]:
    entries: list[dict[str, Any]] = []
    for name in some(draw, paths):
        data, at = read(folder / paths[name]), draw(st.integers(start, start + 100))
        ids = sorted({id for (a, e), id in zip(data.documents, data.ids, strict=True) if a < e and id})
        view = folder / draw(st.sampled_from(VIEWS.get(paths[name], [""])))
        take = draw(st.sampled_from(["sample", "own", "own"]))
        track, concept = draw(st.sampled_from(TRACKS[:2])), draw(st.integers(0, CONCEPTS - 1))
        by_concept = {"dataset": name, "concept": {"track": track, "id": concept}}
        if view != folder and any(excluded({"subset": view}, data)) and draw(st.booleans()):
            entries.append({"at": at, "dataset": name, "subset": str(view), "take": take})
        elif track in data.spans and any(excluded(by_concept, data)) and draw(st.booleans()):
            entries.append({"at": at, **by_concept, "take": draw(st.sampled_from(["own", "own", "labels", "sample"]))})
        elif draw(st.integers(0, 2)) == 0:
            first = draw(st.integers(0, len(data.tokens) - 1))
            tokens = [first, draw(st.integers(first + 1, len(data.tokens)))]
            entries.append({"at": at, "dataset": name, "tokens": tokens, "take": take})
        elif ids:
            entries.append({"at": at, "ids": some(draw, ids, min_size=1, max_size=4), "take": take})
            entries[-1] |= {"dataset": name} if draw(st.booleans()) else {}
    return entries


def add_outputs(draw: st.DrawFn, config: dict[str, Any], paths: dict[str, str]) -> None:
    outputs, packed = config["outputs"], "packing" in config
    outputs["position_ids"] = draw(st.sampled_from(["window", "document", "off"]))
    outputs["mask_document_boundaries"] = draw(st.booleans())
    outputs["shared_labels"] = not packed and draw(st.booleans())
    known = [read(Path(entry["path"])) for entry in config["datasets"].values()]
    if not any("loss_mask" in data.fields for data in known) and not packed and not config["exclude"]:
        needed = outputs["mask_document_boundaries"] or not outputs["loss_on_eos"]
        outputs["loss_mask"] = needed or draw(st.booleans())
    if outputs.get("loss_mask", True) and not outputs["shared_labels"]:
        outputs["ignore_index"] = draw(st.sampled_from([None, -100]))
    if any(data.spans for data in known):
        of_field, of_track = {"name": "weight", "missing": 3}, {"name": "numbers", "missing": 0.5, "outside": -2}
        numbers = {data.codecs["numbers"][1]["dtype"] for data in known if "numbers" in data.codecs}
        named = draw(
            st.dictionaries(st.sampled_from([f"concept-{k}" for k in range(CONCEPTS)]), st.sampled_from([0, 2.5]))
        )
        of_concepts = {"name": draw(st.sampled_from(TRACKS[:2])), "missing": 4, "outside": 1, "concepts": named}
        of_concepts |= {"inside": draw(st.sampled_from([0, 0.5]))} if draw(st.booleans()) else {}
        weights = [of_field, of_concepts, *[of_track] * (numbers <= {"f2", "f4"})]
        there = {name for data in known for name in (*data.fields, *data.spans)}
        weights = [one for one in weights if one["name"] in there]
        several = [draw(st.lists(st.sampled_from(weights), max_size=3))] if weights else []
        outputs["loss_weight"] = draw(st.sampled_from([None, *weights, *several]))
    for entry in config["datasets"].values():
        entry |= {"loss_weight": draw(st.sampled_from([0, 0.3, 1, 7]))} if draw(st.integers(0, 3)) == 0 else {}
    if all(FIELDS.keys() <= data.fields.keys() for data in known):
        outputs["fields"] = {name: draw(st.sampled_from(["inputs", "labels"])) for name in some(draw, FIELDS)}
    columns = {name for data in known for name in data.columns}
    outputs["columns"] = {name: draw(column_options(known, name)) for name in (some(draw, columns) if columns else ())}
    config["tracks"] = {}
    tracks = {track for data in known for track in data.spans} & {*TRACKS}
    for track in some(draw, tracks) if tracks else []:
        config["tracks"][track] = how = {}
        if track == "notes":
            how["layout"] = "records"
        elif track != "numbers":
            how["layout"] = draw(st.sampled_from(["padded", "ragged"]))
        if draw(st.booleans()):
            how |= {"max_spans": draw(st.integers(1, 5)), "overflow": draw(st.sampled_from(["truncate", "mark"]))}
            if track not in ("numbers", "notes"):
                how["max_concepts"] = draw(st.integers(1, 3))


@st.composite
def column_options(draw: st.DrawFn, known: Sequence[Any], name: str) -> Any:
    """`missing` is given unless each token has a value."""
    at = draw(st.sampled_from(["inputs", "labels"]))
    if all(name in data.columns and data.columns[name].whole for data in known) and draw(st.booleans()):
        return at
    return {"at": at, "missing": draw(st.integers(0, 100)), "dtype": draw(st.sampled_from(["widened", "stored"]))}


def as_array(tensor: torch.Tensor) -> Any:
    """Of bfloat16 its bits."""
    return tensor.view(torch.uint16).numpy() if tensor.dtype == torch.bfloat16 else tensor.numpy()


def check_batch(oracle: Oracle, batch: Any, positions: Sequence[int], end: int | None = None) -> int:
    """Compares a batch with what the documentation says of these positions of a run, which repeats samples after `end`.

    Returns: their number.
    """
    samples = [t % end if end else t for t in positions]
    batch = {name: as_array(value) if hasattr(value, "numpy") else value for name, value in batch.items()}
    assert batch["sample_index"].tolist() == samples
    wanted = [oracle.sample(*both) for both in zip(samples, positions, strict=True)]
    names, borders = {name for name in batch if not name.startswith(TRACKS)}, [0]
    for row, (t, sample) in enumerate(zip(samples, wanted, strict=True)):
        assert names - {"sample_index", "cu_seqlens", "max_seqlen"} == set(sample.arrays)
        for name, value in sample.arrays.items():
            found = batch[name][row]
            same = found.dtype == value.dtype and found.tobytes() == value.tobytes()  # NaN too
            assert same, f"sample {t}: {name}: found {found}, expected {value}"
        for track, how in oracle.config["tracks"].items():
            limit = batch[f"{track}_spans"].shape[1]
            of_track = {name: value for name, value in batch.items() if name.startswith(f"{track}_")}
            if how.get("layout") == "ragged":
                slots = list(pairwise(of_track.pop(f"{track}_offsets").tolist()))
                for kind in {f"{track}_values", f"{track}_scores"} & set(of_track):
                    lists = [of_track[kind][a:b].tolist() for a, b in slots]
                    of_track[kind] = [lists[k : k + limit] for k in range(0, len(lists), limit)]
            of_row = {name: value[row] for name, value in of_track.items()}
            check_spans(how, of_row, track, sample, f"sample {t}: {track}")
        borders += [row * oracle.seq_len + k for k in (*sample.sequences[1:], oracle.seq_len)]
    if "cu_seqlens" in names:
        assert batch["cu_seqlens"].tolist() == borders
        assert batch["max_seqlen"] == np.diff(borders).max(initial=0)
    for value in batch.values():
        if isinstance(value, np.ndarray):
            value[...] = 1  # as trainers may: it is in no later batch
    return len(samples)


def check_spans(how: dict[str, Any], found: dict[str, Any], track: str, sample: Sample, where: str) -> None:
    """found: the arrays of a track, of one row; of ragged ones a list for each slot."""
    spans, limit, width = sample.spans[track], len(found[f"{track}_spans"]), how.get("max_concepts")
    assert limit == how["max_spans"] if "max_spans" in how else limit >= len(spans)
    index = np.full(len(found[f"{track}_span_index"]), -1)
    for k, span in enumerate(spans):
        index[span.start : span.end] = k if k < limit else -2 if how.get("overflow") == "mark" else -1
    assert found[f"{track}_span_index"].tolist() == index.tolist(), where
    spans = spans[:limit]
    blank = limit - len(spans)
    assert found[f"{track}_num_spans"] == len(spans), where
    assert found[f"{track}_spans"].tolist() == [[s.start, s.end] for s in spans] + [[0, 0]] * blank, where
    flags = [s.begins_before + 2 * s.ends_after for s in spans]
    assert found[f"{track}_flags"].tolist() == flags + [0] * blank, f"{where}: flags of {spans}"
    meant = [meaning(sample.codecs[track], span.record) for span in spans]
    if track == "notes":
        assert [[value] for value in found["notes_records"]] == [values for values, _ in meant], where
        return
    ids = [values[:width] for values, _ in meant] + [[]] * blank
    scores = [(scores or [])[:width] for _, scores in meant] + [[]] * blank
    if track == "numbers":
        assert found["numbers_values"].tolist() == [one for values in ids[: len(spans)] for one in values] + [0] * blank
    elif how["layout"] == "padded":
        assert found[f"{track}_counts"].tolist() == [len(one) for one in ids], where
        room = found[f"{track}_ids"].shape[1]
        assert found[f"{track}_ids"].tolist() == [one + [-1] * (room - len(one)) for one in ids], where
        if track == "scored":
            assert found["scored_scores"].tolist() == [one + [0] * (room - len(one)) for one in scores], where
    else:
        assert found[f"{track}_values"] == ids, where
        assert track != "scored" or found["scored_scores"] == scores, where


def check_far(draw: st.DrawFn, config: dict[str, Any], oracle: Oracle, blend: cl.Blend) -> int:
    """Samples anywhere, by what torch's DataLoader reads, as it is or in another process."""
    found = draw(st.lists(st.integers(0, 2**60 - 1), max_size=6))
    data = cl.SampleDataset(blend, num_samples=2**60)
    if draw(st.booleans()):
        data = pickle.loads(pickle.dumps(data))
    whole = config["outputs"]["cu_seqlens"] or any(how.get("layout") == "ragged" for how in config["tracks"].values())
    stacked = draw(st.booleans()) and not whole
    samples = [data[k] for k in found] if stacked else data.__getitems__(found)
    return check_batch(oracle, cl.collate_fn(samples), found) if found else 0


def check_run(draw: st.DrawFn, config: dict[str, Any], oracle: Oracle, blend: cl.Blend) -> int:
    """A run from its beginning, resumed a few times: on other ranks, with other weights, with a configuration that was
    edited ahead of the position."""
    state, at, checked, rule = None, 0, 0, draw(st.sampled_from(RULES))
    resumes, learned = draw(st.integers(0, 3)), None
    if len(oracle.sizes) > 1 and draw(st.integers(0, 2)) == 0:
        given = {} if "weights" in config else {"weight": 1}
        datasets = {name: {**given, **dataset} for name, dataset in config["datasets"].items()}
        mixing = {"conceptloader.testing.controllers:Greedy": {}}
        config = {**config, "datasets": datasets, "phases": [], "mixing": mixing}
        oracle, learned = Oracle(config), Greedy(dict.fromkeys(sorted(oracle.sizes), 1))
        blend = cl.open_blend(config)
    for number in range(resumes + 1):
        groups = [(m, n) for n in (1, 2, 3, 4) for m in (1, 2, 3, 4, 6, 12)]
        size, ranks = draw(st.sampled_from([(m, n) for m, n in groups if BATCH % (m * n) == at % BATCH % (m * n) == 0]))
        end, tail = None, draw(st.sampled_from(["drop", "partial"]))
        if number == resumes and draw(st.booleans()):
            end = draw(st.integers(max(at + 1, 2 * BATCH), at + 50))
        loaders = [
            cl.make_dataloader(
                blend,
                dp_rank=k,
                dp_size=ranks,
                micro_batch_size=size,
                global_batch_size=cl.adapters.BatchSchedule(rule),
                num_samples=end,
                last_batch=tail if end else None,
            )
            for k in range(ranks)
        ]
        for loader in loaders:
            if state is not None:
                loader.load_state_dict(json.loads(json.dumps(state)))
        iterators = [iter(loader) for loader in loaders]
        if end is not None:
            samples = samples_to(end, tail, rule)[at:]
            for k, iterator in enumerate(iterators):
                mine = [
                    samples[first : first + size * ranks][k::ranks] for first in range(0, len(samples), size * ranks)
                ]
                for batch, expected in zip(iterator, mine, strict=True):
                    checked += check_batch(oracle, batch, expected, end)
            break
        for _ in range(draw(st.integers(0, 40 // (size * ranks)))):
            for k, iterator in enumerate(iterators):
                checked += check_batch(oracle, next(iterator), range(at + k, at + size * ranks, ranks))
            at += size * ranks
            if learned is not None:
                oracle = observe(learned, oracle, loaders, at, rule)
            elif draw(st.integers(0, 5)) == 0:
                oracle = set_weights(draw, oracle, loaders, at, size * ranks)
        states = [loader.state_dict() for loader in loaders]
        assert all(s == states[0] for s in states)
        assert loaders[0].consumed_samples == at
        state = states[0]
        for loader in loaders:
            loader.close()
        if learned is None and draw(st.booleans()):
            config = draw(edited(config, oracle, at))
            oracle, blend = Oracle(config, oracle.live), cl.open_blend(config)
    return checked


def observe(learned: Greedy, oracle: Oracle, loaders: list[Any], at: int, rule: Sequence[tuple[int, int]]) -> Oracle:
    """Tell all ranks the losses of the step that ended at sample `at`, if one did. learned: as they learn."""
    assert oracle.order is not None
    steps = list(takewhile(lambda step: step[0] < at + 1000, reference.steps(rule)))
    ended = [first for first, last in steps if last == at]
    if not ended:
        return oracle
    losses = {oracle.locate(t)[0]: (t * 37 % 50) / 10 for t in range(ended[0], at)}
    for loader in loaders:
        loader.observe(losses)
    weights = learned.observe([last for _, last in steps].index(at), losses)
    _, in_force = max(oracle.order.phases, key=lambda phase: phase[0])
    if weights is None or shares(weights) == shares(in_force):  # which begin no phase
        return oracle
    after, taken = oracle.live[-1][0] if oracle.live else 0, [start for start, _ in oracle.order.phases]
    starts = [oracle.order.global_sample(first) for first, _ in steps if first >= at]
    start = next(start for start in starts if start not in taken and start > after)
    return Oracle(oracle.config, [*oracle.live, (start, weights)])


def shares(weights: Mapping[str, float]) -> dict[str, Fraction]:
    exact = {name: Fraction(reference.exact_weight(weight)) for name, weight in weights.items()}
    return {name: weight / sum(exact.values()) for name, weight in exact.items()}


def samples_to(end: int, tail: str, rule: Sequence[tuple[int, int]]) -> list[int]:
    """Positions of a run of `end` samples."""
    first, last = next((first, last) for first, last in reference.steps(rule) if last >= end)
    whole = last if last == end else first
    return list(range({"drop": whole, "partial": end}[tail]))


def set_weights(draw: st.DrawFn, oracle: Oracle, loaders: list[Any], at: int, group: int) -> Oracle:
    """Other weights on all ranks, from a sample on that none can have read."""
    assert oracle.order is not None
    new, ahead = draw(weights(sorted(oracle.sizes))), at + 4 * group
    after, taken = oracle.live[-1][0] if oracle.live else 0, [phase["start"] for phase in oracle.config["phases"]]
    free = [t for t in range(ahead, ahead + 200) if after < oracle.order.global_sample(t) not in taken]
    start = draw(st.sampled_from([None, *free[:30]]))
    starts = {loader.set_weights(new, start) for loader in loaders}
    assert len(starts) == 1
    assert min(starts) >= at
    assert start is None or starts == {start}
    return Oracle(oracle.config, [*oracle.live, (oracle.order.global_sample(starts.pop()), new)])


@st.composite
def edited(draw: st.DrawFn, config: dict[str, Any], oracle: Oracle, at: int) -> dict[str, Any]:
    """Other phases, skips, exclusions and another dataset from the position on, of a run that is at sample `at`."""
    assert oracle.order is not None
    datasets, here = dict(config["datasets"]), oracle.order.global_sample(at)
    if "weights" not in config and draw(st.booleans()):
        like = dict(datasets[draw(st.sampled_from(sorted(datasets)))])
        like.pop("weight", None)
        datasets[draw(st.sampled_from(["0", "z", "\U0001f600", "\uff21"])) + str(at)] = like
    live = [start for start, _ in oracle.live]
    starts = st.integers(max(here, 1), here + 100).filter(lambda start: start not in live)
    phases = config["phases"]
    if new := sorted(draw(st.lists(starts, unique=True, max_size=2))):
        phases = [phase for phase in phases if phase["start"] < here]
        phases += [{"start": start, "weights": draw(weights(sorted(datasets)))} for start in new]
        phases[-1]["weights"] |= {name: 1 for name, dataset in datasets.items() if "weight" not in dataset}
    skips = [{"at": t, "count": draw(st.integers(1, 50))} for t in draw(st.lists(st.integers(at, at + 40), max_size=2))]
    return {
        **config,
        "datasets": datasets if new else config["datasets"],
        "phases": phases,
        "skip": [skip for skip in config["skip"] if skip["at"] < at] + sorted(skips, key=lambda skip: skip["at"]),
        "exclude": [entry for entry in config["exclude"] if entry.get("at", 0) < at or draw(st.booleans())],
    }


def check_evaluation(draw: st.DrawFn, oracle: Oracle, blend: cl.Blend) -> int:
    """Every window once, on any number of ranks; the last ones of many."""
    total, size, ranks = sum(oracle.sizes.values()), draw(st.integers(1, 40)), draw(st.integers(1, 4))
    group = size * ranks
    begin = max(0, total - 400) // group * group
    for k in range(ranks):
        options = {"dp_rank": k, "dp_size": ranks, "micro_batch_size": size, "consumed_samples": begin}
        with cl.make_dataloader(blend, **options) as loader:
            mine = [range(first, min(first + group, total))[k::ranks] for first in range(begin, total, group)]
            for batch, expected in zip(loader, mine, strict=True):
                check_batch(oracle, batch, expected)
    return total - begin


def check_wrap(draw: st.DrawFn, config: dict[str, Any], oracle: Oracle, blend: cl.Blend) -> int:
    """The last batch of a run that ends after an exclusion, padded with samples from before it."""
    end = max(entry.get("at", 0) for entry in config["exclude"]) + draw(st.integers(1, BATCH))
    end = min(end, sum(oracle.sizes.values()))
    first, options = (end - 1) // BATCH * BATCH, {"num_samples": end, "last_batch": "wrap"}
    with cl.make_dataloader(blend, micro_batch_size=BATCH, consumed_samples=first, **options) as loader:
        [batch] = loader
        return check_batch(oracle, batch, range(first, first + BATCH), end)


def check(draw: st.DrawFn, config: dict[str, Any]) -> int:
    """Returns the number of samples that were compared."""
    oracle, blend = Oracle(config), cl.open_blend(config)
    assert list(oracle.sizes.values()) == list(blend.order.sizes)
    if config["order"] == "sequential":
        wrapped = check_wrap(draw, config, oracle, blend) if config["exclude"] else 0
        return wrapped + check_evaluation(draw, oracle, blend)
    return check_far(draw, config, oracle, blend) + check_run(draw, config, oracle, blend)


@contextmanager
def machine(draw: st.DrawFn) -> Iterator[None]:
    """With few descriptors, or storage on which each read is late."""
    with pytest.MonkeyPatch.context() as patch:
        if most := draw(st.sampled_from([0, 0, 1, 5])):
            patch.setattr(HANDLES, "capacity", most)
        if draw(st.integers(0, 3)) == 0:
            patch.setattr(reader, "LATE_NS", -1)
        yield


@pytest.mark.slow
@pytest.mark.soak
@pytest.mark.timeout(7200 if SOAK else 600)
@settings(
    max_examples=scaled(120, 20_000),
    derandomize=not SOAK,
    database=None,
    print_blob=True,
    suppress_health_check=list(HealthCheck),
)
@given(data=st.data())
def test_samples_are_those_of_the_documentation(data: st.DataObject, corpora: Any, tally: Tally) -> None:
    logging.getLogger("conceptloader").setLevel(logging.ERROR)  # many samples have no loss
    folder = corpora(data.draw(st.integers(0, scaled(5, 500)), "corpora"))
    config = data.draw(configurations(folder, imported=True), "config")
    with machine(data.draw):
        tally("oracle", {"configurations": 1, "samples": check(data.draw, config)})
