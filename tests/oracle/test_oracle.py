"""Random configurations on random ranks, stopped and resumed, against a brute-force reading of the documentation.

On few descriptors, with late storage, into memory that was written to.
"""

import copy
import json
import logging
import pickle
import tempfile
from contextlib import contextmanager
from dataclasses import dataclass
from fractions import Fraction
from functools import lru_cache
from itertools import islice, pairwise, takewhile
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from torch.utils.data import DataLoader

import conceptloader as cl
from conceptloader.loader.batch import reader
from conceptloader.storage.handles import HANDLES
from conceptloader.testing.controllers import Greedy
from conceptloader.trace.subset import SubsetOptions, make_ranges
from tests.oracle.corpora import CONCEPTS, DOCUMENTS, FIELDS, STREAMS, write_all
from tests.oracle.data import read
from tests.oracle.imported import CHATS, IMPORTED, write_imported
from tests.oracle.samples import Oracle, carrying, excluded, meaning
from tests.order.plain import smallest_integers, steps
from tests.scale import SOAK, scaled

BATCH = 12
TRACKS = ("concepts", "scored", "numbers", "notes")
RULES = (((0, BATCH),), ((0, BATCH), (3 * BATCH, 2 * BATCH)), ((0, 2 * BATCH), (4 * BATCH, BATCH)))


@pytest.fixture(scope="module")
def corpora(tmp_path_factory):
    @lru_cache(None)
    def written(seed):
        folder = write_all(tmp_path_factory.mktemp(f"seed-{seed}-"), seed)
        write_imported(folder, seed)
        return folder

    return written


def some(draw, values, **how):
    return draw(st.lists(st.sampled_from(sorted(values)), unique=True, **how))


@st.composite
def weights(draw, names):
    number = st.one_of(st.integers(1, 1000), st.sampled_from([0.1, 0.7, 0.01, 3.25]))
    return {name: draw(number) for name in some(draw, names, min_size=1)}


@st.composite
def configurations(draw, folder, imported=False):
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
    config = {
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
        config["phases"] = draw(ahead(sorted(paths), st.integers(1, 150)))
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
    add_outputs(draw, config)
    return config


@st.composite
def exclusions(draw, folder, paths):
    entries = []
    for name in some(draw, paths):
        data, at = read(folder / paths[name]), draw(st.integers(0, 100))
        ids = sorted({id for (a, e), id in zip(data.documents, data.ids, strict=True) if a < e and id})
        take = draw(st.sampled_from(["sample", "own", "own"]))
        track, concept = draw(st.sampled_from(TRACKS[:2])), draw(st.integers(0, CONCEPTS - 1))
        if (tokens := carrying(data, track, concept)) and draw(st.booleans()):
            file = folder / f"{paths[name]}-{track}-{concept}.txt"
            if not file.exists():
                make_ranges(folder / paths[name], file, SubsetOptions(spans=f"{concept} in {track}"), roots=[folder])
            entries.append({"at": at, "dataset": name, "token_file": str(file), "take": take})
            assert excluded(entries[-1], data) == tokens
        elif draw(st.integers(0, 2)) == 0:
            first = draw(st.integers(0, len(data.tokens) - 1))
            tokens = [first, draw(st.integers(first + 1, len(data.tokens)))]
            entries.append({"at": at, "dataset": name, "tokens": tokens, "take": take})
        elif ids:
            entries.append({"at": at, "ids": some(draw, ids, min_size=1, max_size=4), "take": take})
            entries[-1] |= {"dataset": name} if draw(st.booleans()) else {}
    return entries


def add_outputs(draw, config):
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
        weights = [of_field, *[of_track] * (numbers <= {"f2", "f4"})]
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
def column_options(draw, known, name):
    """`missing` is given unless each token has a value."""
    at = draw(st.sampled_from(["inputs", "labels"]))
    if all(name in data.columns and data.columns[name].whole for data in known) and draw(st.booleans()):
        return at
    return {"at": at, "missing": draw(st.integers(0, 100)), "dtype": draw(st.sampled_from(["widened", "stored"]))}


def as_array(tensor):
    """Of bfloat16 its bits."""
    return tensor.view(torch.uint16).numpy() if tensor.dtype == torch.bfloat16 else tensor.numpy()


def check_batch(oracle, batch, positions, end=None):
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


def check_spans(how, found, track, sample, where):
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


def check_far(draw, config, oracle, blend):
    """Samples anywhere, by what torch's DataLoader reads, as it is or in another process; and an epoch on a rank."""
    found = draw(st.lists(st.integers(0, 2**60 - 1), max_size=6))
    data = cl.SampleDataset(blend, num_samples=2**60)
    if draw(st.booleans()):
        data = pickle.loads(pickle.dumps(data))
    whole = config["outputs"]["cu_seqlens"] or any(how.get("layout") == "ragged" for how in config["tracks"].values())
    stacked = draw(st.booleans()) and not whole
    samples = [data[k] for k in found] if stacked else data.__getitems__(found)
    checked = check_batch(oracle, cl.collate_fn(samples), found) if found else 0
    number, ranks = draw(st.integers(1, 40)), draw(st.integers(1, 4))
    rank, epoch, skip = draw(st.integers(0, ranks - 1)), draw(st.integers(0, 3)), draw(st.integers(0, 5))
    sampler = cl.EpochSampler(number, num_replicas=ranks, rank=rank)
    sampler.set_epoch(epoch)
    sampler.set_skip(skip)
    padded = range(-(-number // ranks) * ranks)
    mine = [epoch * number + k % number for k in padded][rank::ranks][skip:]
    for k, batch in enumerate(DataLoader(data, batch_size=7, sampler=sampler, collate_fn=cl.collate_fn)):
        checked += check_batch(oracle, batch, mine[7 * k : 7 * k + 7])
    return checked


@dataclass(frozen=True)
class Saved:
    """A checkpoint, and what is known of the run there."""

    state: Any
    at: int
    oracle: Oracle
    learned: Greedy | None


class Run:
    """A run from its beginning, in launches that resume it: on other ranks, from earlier checkpoints, with other
    weights, with a configuration that was edited ahead of the position, in other trainers.

    at: its position. origin: where the steps of its trainer count from; before: how many others made. saved:
    checkpoints that its configuration can resume. logged: whether its log tells how all of it was drawn.
    """

    def __init__(self, draw, config, oracle, folder):
        self.draw, self.folder, self.rule = draw, folder, draw(st.sampled_from(RULES))
        self.at = self.origin = self.before = self.checked = 0
        self.seldom = draw(st.sampled_from([0, 5, 5, 5]))  # in how few of the groups weights are set
        self.saved, self.logged, self.load = [], True, {}
        self.state = None
        self.read = {}  # datasets of the samples
        self.lengths = {}  # the datasets as they were first read at each length
        self.learned = None
        if len(oracle.sizes) > 1 and draw(st.integers(0, 2)) == 0:
            given = {} if "weights" in config else {"weight": 1}
            datasets = {name: {**given, **dataset} for name, dataset in config["datasets"].items()}
            mixing = {"conceptloader.testing.controllers:Greedy": {}}
            config = {**config, "datasets": datasets, "phases": [], "mixing": mixing}
            oracle, self.learned = Oracle(config), Greedy(dict.fromkeys(sorted(oracle.sizes), 1))
        self.config, self.oracle = config, oracle

    def change(self):
        """What a person does before the next launch."""
        draw = self.draw
        if draw(st.integers(0, 3)) == 0:
            self.back(draw(st.sampled_from(self.saved)))
        if draw(st.booleans()):
            self.config = draw(edited(self.config, self.oracle, self.at, self.learned is None))
            self.oracle = Oracle(self.config, self.oracle.live, self.oracle.past)
            self.saved = [one for one in self.saved if one.at <= self.at]
        kind = draw(st.integers(0, 7)) if self.at else 0
        if kind == 1 and self.learned is None:
            past = self.oracle.gone(self.at)
            self.config.pop("continue_from", None)  # which a launch would resume first, as no stage
            self.config = draw(staged(self.config, self.at))
            self.oracle, self.load = Oracle(self.config, past=past), {"new_stage": True}
            self.saved, self.logged = [], False
        elif kind in (2, 3):
            self.resize()
        elif kind == 4 and any(first == self.at for first, _ in self.steps()):
            (self.folder / "state.json").write_text(json.dumps(self.state))
            self.config = {**self.config, "continue_from": str(self.folder / "state.json")}
            self.before += self.ended()
            self.origin, self.state, self.saved, self.logged = self.at, None, [], False

    def back(self, to):
        self.state, self.at, self.learned = to.state, to.at, copy.deepcopy(to.learned)
        self.oracle = Oracle(self.config, to.oracle.live, to.oracle.past)

    def resize(self):
        """Another sequence length, with other splits if it is a new one; documents stay samples."""
        draw, datasets = self.draw, dict(self.config["datasets"])
        documents = self.oracle.is_of_documents()
        self.lengths.setdefault(self.oracle.seq_len, self.config["datasets"])
        length = draw(st.integers(1, 20) | st.sampled_from(sorted(self.lengths)))
        for name in [] if documents else datasets if length in self.lengths else some(draw, datasets):
            split = draw(st.sampled_from([[0, 0.5], [0.5, 1], [0, 1]]))
            split = self.lengths.get(length, {}).get(name, {}).get("split", [0, 1]) if length in self.lengths else split
            datasets[name] = {**datasets[name], "split": split}
        change = {"seq_len": length, "datasets": datasets}
        if length != self.oracle.seq_len and min(Oracle({**self.config, **change}).sizes.values()) > 0:
            self.config = {**self.config, **change}
            past = self.oracle.past if documents else self.oracle.gone(self.at)
            self.oracle = Oracle(self.config, self.oracle.live, past)
            self.saved, self.logged = [], False

    def steps(self):
        return list(takewhile(lambda step: step[0] < self.at + 1000, steps(self.rule, self.origin)))

    def ended(self):
        return sum(end <= self.at for _, end in self.steps())

    def launch(self, last):
        draw, blend = self.draw, cl.open_blend(self.config)
        groups = [(m, n) for n in (1, 2, 3, 4) for m in (1, 2, 3, 4, 6, 12)]
        done = (self.at - self.origin) % BATCH
        size, ranks = draw(st.sampled_from([(m, n) for m, n in groups if BATCH % (m * n) == done % (m * n) == 0]))
        end, tail = None, draw(st.sampled_from(["drop", "partial"]))
        if last and draw(st.booleans()):
            end = draw(st.integers(max(self.at + 1, self.origin + 2 * BATCH), self.at + 50))
        scheme = draw(st.sampled_from(["strided", "contiguous"]))
        loaders = [
            cl.make_dataloader(
                blend,
                dp_rank=k,
                dp_size=ranks,
                micro_batch_size=size,
                global_batch_size=cl.adapters.BatchSchedule(self.rule),
                num_samples=end,
                last_batch=tail if end else None,
                scheme=scheme,
                allow_changed=["seq_len"],
            )
            for k in range(ranks)
        ]
        for loader in loaders:
            if self.state is not None:
                loader.load_state_dict(json.loads(json.dumps(self.state)), **self.load)
            loader.log_start(self.folder / f"log-{self.origin}", self.ended())
        self.load = {}
        group, iterators = size * ranks, [iter(loader) for loader in loaders]
        if end is not None:
            within = samples_to(end, tail, self.steps())
            for first in range(self.at, max(within) + 1, group):
                for k, iterator in enumerate(iterators):
                    mine = [t for t in share(first, size, ranks, k, scheme) if t in within]
                    self.checked += check_batch(self.oracle, next(iterator), mine)
            assert all(next(iterator, None) is None for iterator in iterators)
        else:
            self.train(loaders, iterators, size, scheme)
        for loader in loaders:
            loader.close()

    def train(self, loaders, iterators, size, scheme):
        draw, ranks = self.draw, len(loaders)
        borders = []
        for _ in range(draw(st.integers(0, 40 // (size * ranks)))):
            for k, iterator in enumerate(iterators):
                mine = share(self.at, size, ranks, k, scheme)
                self.checked += check_batch(self.oracle, next(iterator), mine)
            self.read |= {t: self.oracle.locate(t)[0] for t in range(self.at, self.at + size * ranks)}
            self.at += size * ranks
            if self.learned is not None:
                self.observe(self.learned, loaders)
            else:
                borders.append(self.at)
                if draw(st.integers(0, self.seldom)) == 0:
                    self.set_weights(loaders)
        states = [loader.state_dict() for loader in loaders]
        assert all(s == states[0] for s in states)
        assert loaders[0].consumed_samples == self.at
        self.state = states[0]
        self.saved.append(Saved(self.state, self.at, self.oracle, copy.deepcopy(self.learned)))
        self.saved += [
            Saved(loaders[-1].state_dict_at(at), at, self.oracle, None) for at in borders[-3:-1] if self.reaches(at)
        ]

    def reaches(self, at):
        """Whether a state of an earlier position can be had: at most 64 changes back (docs/mixtures.md)."""
        return sum(start >= at for start, _ in self.oracle.live) < 64

    def observe(self, learned, loaders):
        """Tell all ranks the losses of the step that ended here, if one did. learned: as they learn."""
        ends = [end for _, end in self.steps()]
        if self.at not in ends:
            return
        first = next(first for first, end in self.steps() if end == self.at)
        losses = {self.read[t]: (t * 37 % 50) / 10 for t in range(first, self.at)}
        for loader in loaders:
            loader.observe(losses)
        weights = learned.observe(self.before + ends.index(self.at), losses)
        if weights is not None and shares(weights) != shares(self.oracle.order.phases[-1][1]):  # which change nothing
            self.now(self.next_step(), weights)

    def next_step(self):
        """The first of which nothing was yielded, and where neither the configuration nor anybody set weights."""
        return next(first for first, _ in steps(self.rule, self.origin) if first >= self.at and self.is_free(first))

    def is_free(self, t):
        oracle = self.oracle
        after = oracle.live[-1][0] if oracle.live else 0
        return after < t not in oracle.starts()

    def set_weights(self, loaders):
        """Other weights on all ranks."""
        new = self.draw(weights(sorted(self.oracle.sizes)))
        free = [t for t in range(self.at, self.at + 200) if self.is_free(t)]
        start = self.draw(st.none() | st.sampled_from(free[:30] or [None]))
        starts = {loader.set_weights(new, start) for loader in loaders}
        assert starts == {self.next_step() if start is None else start}
        self.now(starts.pop(), new)

    def now(self, t, weights):
        self.oracle = Oracle(self.config, [*self.oracle.live, (t, weights)], self.oracle.past)

    def replay(self):
        """What was learned and set, by another run that begins at 0."""
        without = {key: value for key, value in self.config.items() if key not in ("weights", "phases", "mixing")}
        datasets = {
            name: {key: value for key, value in dataset.items() if key != "weight"}
            for name, dataset in self.config["datasets"].items()
        }
        config = {**without, "datasets": datasets, "replay": str(self.folder / "log-0")}
        size, end = self.draw(st.integers(1, 30)), self.at + self.draw(st.integers(1, 60))
        with cl.make_dataloader(config, micro_batch_size=size, num_samples=end, last_batch="partial") as loader:
            for first, batch in zip(range(0, end, size), loader, strict=True):
                self.checked += check_batch(self.oracle, batch, range(first, min(first + size, end)))


def share(first, size, ranks, rank, scheme):
    """What a rank has of a group that begins at `first`."""
    if scheme == "strided":
        return range(first + rank, first + size * ranks, ranks)
    return range(first + rank * size, first + (rank + 1) * size)


def check_run(draw, config, oracle):
    with tempfile.TemporaryDirectory() as folder:
        run = Run(draw, config, oracle, Path(folder))
        launches = draw(st.integers(1, 5))
        for number in range(launches):
            if number:
                run.change()
            run.launch(number + 1 == launches)
        if run.logged and draw(st.booleans()):
            run.replay()
        return run.checked


def shares(weights):
    exact = smallest_integers(weights)
    return {name: Fraction(weight, sum(exact.values())) for name, weight in exact.items()}


def samples_to(end, tail, steps):
    """Positions of a run of `end` samples."""
    first, last = next((first, last) for first, last in steps if last >= end)
    whole = last if last == end else first
    return range({"drop": whole, "partial": end}[tail])


@st.composite
def ahead(draw, names, starts):
    """Phases, some with ramps."""
    phases = []
    for start in sorted(draw(st.lists(starts, unique=True, max_size=3))):
        phases.append({"at": start, "weights": draw(weights(names))})
        if draw(st.booleans()):
            samples = draw(st.integers(1, 20) | st.integers(21, 300))
            phases[-1]["ramp"] = {"samples": samples, "shape": draw(st.sampled_from(["linear", "cosine"]))}
    return phases


@st.composite
def edited(draw, config, oracle, at, phased):
    """Other phases, skips, exclusions and another dataset from the position on, of a run that is at sample `at`."""
    datasets = dict(config["datasets"])
    if phased and "weights" not in config and draw(st.booleans()):
        like = dict(datasets[draw(st.sampled_from(sorted(datasets)))])
        like.pop("weight", None)
        datasets[draw(st.sampled_from(["0", "z", "\U0001f600", "\uff21"])) + str(at)] = like
    live = [start for start, _ in oracle.live]
    starts = st.integers(max(at, 1), at + 100).filter(lambda start: start not in live)
    phases = config["phases"]
    if new := draw(ahead(sorted(datasets), starts)) if phased else []:
        phases = [*(phase for phase in phases if phase["at"] < at), *new]
        last = {**phases[-1], "weights": dict(phases[-1]["weights"])}
        last["weights"] |= {name: 1 for name, dataset in datasets.items() if "weight" not in dataset}
        phases[-1] = last
    skips = [{"at": t, "count": draw(st.integers(1, 50))} for t in draw(st.lists(st.integers(at, at + 40), max_size=2))]
    return {
        **config,
        "datasets": datasets if new else config["datasets"],
        "phases": phases,
        "skip": [skip for skip in config["skip"] if skip["at"] < at] + sorted(skips, key=lambda skip: skip["at"]),
        "exclude": [entry for entry in config["exclude"] if entry.get("at", 0) < at or draw(st.booleans())],
    }


@st.composite
def staged(draw, config, at):
    """A data stage from sample `at` on: other weights, and phases, those before the position without effect."""
    names = sorted(config["datasets"])
    phases = draw(ahead(names, st.integers(1, at + 60)))
    datasets = {name: {**config["datasets"][name], "weight": draw(st.integers(1, 9))} for name in names}
    skips = [{"at": t, "count": draw(st.integers(1, 50))} for t in draw(st.lists(st.integers(0, at + 40), max_size=2))]
    without = {key: value for key, value in config.items() if key != "weights"}
    return {**without, "datasets": datasets, "phases": phases, "skip": sorted(skips, key=lambda skip: skip["at"])}


def check_evaluation(draw, oracle, blend):
    """Every window once, on any number of ranks, stopped and resumed; the last ones of many."""
    total, size, ranks = sum(oracle.sizes.values()), draw(st.integers(1, 40)), draw(st.integers(1, 4))
    group = size * ranks
    begin = max(0, total - 400) // group * group
    stop = min(draw(st.integers(0, 3)), (total - begin - 1) // group)  # within the pass
    for k in range(ranks):
        options = {"dp_rank": k, "dp_size": ranks, "micro_batch_size": size}
        mine = [range(first, min(first + group, total))[k::ranks] for first in range(begin, total, group)]
        with cl.make_dataloader(blend, consumed_samples=begin, **options) as loader:
            for batch, expected in zip(islice(loader, stop), mine, strict=False):
                check_batch(oracle, batch, expected)
            state = loader.state_dict()
        with cl.make_dataloader(blend, **options) as loader:
            loader.load_state_dict(state)
            for batch, expected in zip(loader, mine[stop:], strict=True):
                check_batch(oracle, batch, expected)
    return total - begin


def check_wrap(draw, config, oracle, blend):
    """The last batch of a run that ends after an exclusion, padded with samples from before it."""
    end = max(entry.get("at", 0) for entry in config["exclude"]) + draw(st.integers(1, BATCH))
    end = min(end, sum(oracle.sizes.values()))
    first, options = (end - 1) // BATCH * BATCH, {"num_samples": end, "last_batch": "wrap"}
    with cl.make_dataloader(blend, micro_batch_size=BATCH, consumed_samples=first, **options) as loader:
        [batch] = loader
        return check_batch(oracle, batch, range(first, first + BATCH), end)


def check(draw, config):
    """Returns the number of samples that were compared."""
    oracle, blend = Oracle(config), cl.open_blend(config)
    assert list(oracle.sizes.values()) == list(blend.order.sizes)
    if config["order"] == "sequential":
        wrapped = check_wrap(draw, config, oracle, blend) if config["exclude"] else 0
        return wrapped + check_evaluation(draw, oracle, blend)
    return check_far(draw, config, oracle, blend) + check_run(draw, config, oracle)


@contextmanager
def machine(draw):
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
    max_examples=scaled(120, 1000),
    derandomize=not SOAK,
    database=None,
    print_blob=True,
    suppress_health_check=list(HealthCheck),
)
@given(data=st.data())
def test_samples_are_those_of_the_documentation(data, corpora, tally):
    logging.getLogger("conceptloader").setLevel(logging.ERROR)  # many samples have no loss
    folder = corpora(data.draw(st.integers(0, scaled(5, 500)), "corpora"))
    config = data.draw(configurations(folder, imported=True), "config")
    with machine(data.draw):
        tally("oracle", {"configurations": 1, "samples": check(data.draw, config)})
