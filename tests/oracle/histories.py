"""Histories of runs, and what their ranks read: recorded once in histories.json, so that no change moves a sample.

Each is made of its number alone: a configuration and launches that edit it, resume, go back, move to another trainer.
Only public names are called. All samples are the trainer's; `phases` is where that becomes what the configuration
counts in. New ones: `python -m tests.oracle.histories`, into a file of which no line that was there may change.
"""

import json
import logging
import random
import tempfile
from hashlib import sha256
from itertools import islice, pairwise
from pathlib import Path

import conceptloader as cl
from tests.corpora.small import written
from tests.order.plain import steps

RECORDED = Path(__file__).with_suffix(".json")
COUNT = 200
BATCH = 24
SIZES = {"a": 900, "b": 230, "c": 9000, "d": 70}  # tokens
RULES = (((0, BATCH),), ((0, BATCH), (3 * BATCH, 2 * BATCH)), ((0, 2 * BATCH), (4 * BATCH, BATCH)))
GREEDY = {"conceptloader.testing.controllers:Greedy": {"times": 3}}


class Draw:
    """Random choices that stay what they are in every version of Python."""

    def __init__(self, seed):
        self._next = random.Random(seed).random

    def number(self, low, high):
        """In [low, high)."""
        return low + int(self._next() * (high - low))

    def chance(self, one_in):
        return self.number(0, one_in) == 0

    def one(self, among):
        return among[self.number(0, len(among))]

    def some(self, among):
        return [x for x in among if self.chance(2)] or [self.one(among)]

    def weights(self, names):
        return {name: self.one([1, 2, 7, 100, 0.1, 0.7, 3.25]) for name in self.some(names)}


def write(folder):
    """Datasets of which each token says where it is."""
    tokenizer = cl.writing.Tokenizer(name="places", vocab_size=50_000, eos_id=49_999)
    for k, (name, size) in enumerate(SIZES.items()):
        draw, ends = Draw(k), [0]
        while ends[-1] < size:
            ends.append(min(size, ends[-1] + draw.number(1, 40)))
        places = enumerate(pairwise(k * 10_000 + end for end in ends))
        documents = [([*range(*place)], {}, f"{name}-{number}") for number, place in places]
        written(folder / name, documents, tokenizer=tokenizer, token_type="u4")


def order_hash(blend):
    """None of an order with ramps or weights set live, which is no promise."""
    spec = blend.spec
    ramped = blend.config.replay is None and any(phase.ramp for phase in blend.config.phases)
    return [] if spec.live or ramped or any(one.ramp for one in spec.segments) else [spec.hash[:8]]


class History:
    """A run; `digests` has a line for each launch: what was read, and the order's hash, see `order_hash`."""

    def __init__(self, number, data, folder):
        self.draw = draw = Draw(1000 + number)
        self.data, self.folder, self.digests = data, folder, []
        self.names = draw.some(sorted(SIZES))
        self.sequential = draw.chance(10)
        self.learns = not self.sequential and len(self.names) > 1 and draw.chance(5)
        self.config = {
            "seed": draw.number(0, 10**6),
            "seq_len": draw.one([4, 5, 7]),
            "loader": {"prefetch_batches": draw.number(0, 3), "num_threads": 1},
            "datasets": {name: {"path": str(data / name)} for name in self.names},
        }
        if draw.chance(6):
            self.config["packing"] = {"bins": draw.one([2, 5])}
        if draw.chance(5):
            self.config["datasets"][self.names[0]]["split"] = [0.25, 1]
        self.skips = []
        self.phases = {}  # by the trainer's sample
        self.excluded = []
        self.at, self.live_to, self.set_live, self.moved = 0, 0, False, False
        self.state = None
        self.saved = []
        self.rule = draw.one(RULES)
        if self.sequential:
            self.config["order"] = "sequential"
        else:
            self.config["block"] = draw.one([1, 7, 64, 64])
            if draw.chance(4):
                self.config["weights"] = "by_size"
            else:
                for dataset in self.config["datasets"].values():
                    dataset["weight"] = 1 if self.learns else draw.one([1, 3, 0.3])
                    dataset |= {"max_epochs": 10_000} if draw.chance(8) else {}
            self.config |= {"temperature": 2} if draw.chance(6) else {}
        if self.learns:
            self.config["mixing"] = GREEDY
        self.edit(later=False)

    def edit(self, later=True):
        """The person edits what lies ahead."""
        draw, first = self.draw, max(self.at, self.live_to) + 1
        if not self.sequential:
            for _ in range(draw.number(0, 3)):
                at = draw.number(first, first + 120)
                if not any(
                    s < at < s + phase.get("ramp", {"samples": 0})["samples"] for s, phase in self.phases.items()
                ):
                    self.skips.append({"at": at, "count": draw.number(1, 90)})
            others = sorted(SIZES.keys() - {*self.names})
            if later and others and "weights" not in self.config and not self.learns and draw.chance(3):
                name = draw.one(others)
                self.names = sorted([*self.names, name])
                self.config["datasets"][name] = {"path": str(self.data / name)}
                self.phases[first + 5] = {"weights": dict.fromkeys(self.names, 1)}
            for _ in range(0 if self.learns else draw.number(0, 3)):
                at = draw.number(first, first + 120)
                self.phases[at] = {"weights": draw.weights(self.names)}
                samples = draw.number(1, 150)
                if draw.chance(3) and not any(at <= skip["at"] <= at + samples for skip in self.skips):
                    self.phases[at]["ramp"] = {"samples": samples, "shape": draw.one(["linear", "cosine"])}
        for _ in range(draw.number(0, 3)):
            name = draw.one(self.names)
            begin = draw.number(0, SIZES[name] - 1)
            entry = {"dataset": name, "tokens": [begin, draw.number(begin + 1, SIZES[name])]}
            at = draw.number(first, first + 100)
            self.excluded.append({"at": at, **entry, "take": draw.one(["sample", "own"])})
            if not later and draw.chance(3):
                self.excluded.append(entry)

    def written(self):
        """The configuration as of now."""
        skips = sorted(self.skips, key=lambda skip: skip["at"])
        phases = [{"at": at, **phase} for at, phase in sorted(self.phases.items())]
        lists = {"skip": skips, "phases": phases, "exclude": self.excluded}
        return {**self.config, **{name: value for name, value in lists.items() if value}}

    def launch(self, last, **load):
        """Trains some micro batches, with `load` for load_state_dict; in the last launch maybe all up to an end."""
        draw, config = self.draw, self.written()
        blend = cl.open_blend(config)
        groups = [(m, n) for n in (1, 2, 3) for m in (1, 2, 4, 8, 12)]
        size, ranks = draw.one([(m, n) for m, n in groups if BATCH % (m * n) == self.at % (m * n) == 0])
        group, options = size * ranks, {}
        if self.sequential:
            options = {"last_batch": draw.one(["drop", "partial", "wrap"])}
            options |= {"num_samples": draw.number(48, 90)} if {"a", "c"} & {*self.names} else {}
        elif last and draw.chance(2):
            end = max(self.at + draw.number(1, 100), 2 * BATCH)
            options = {"last_batch": draw.one(["drop", "partial"]), "num_samples": end}
        loaders = [
            cl.make_dataloader(
                blend,
                dp_rank=rank,
                dp_size=ranks,
                micro_batch_size=size,
                global_batch_size=cl.adapters.BatchSchedule(self.rule),
                scheme="contiguous" if size > 2 else "strided",
                allow_changed=["seq_len"],
                **options,
            )
            for rank in range(ranks)
        ]
        for loader in loaders:
            if self.state is not None and "continue_from" not in config:
                loader.load_state_dict(json.loads(json.dumps(self.state)), **load)
            if not self.moved:
                loader.log_start(self.folder / "log", self.step())
        digest, iterators = sha256(), [iter(loader) for loader in loaders]
        for _ in range(draw.number(1, 60 // group + 3) if not options else 10**6):
            batches = [next(iterator, None) for iterator in iterators]
            assert len({batch is None for batch in batches}) == 1
            if batches[0] is None:
                break
            for batch in batches:
                for name in ("sample_index", "dataset_id", "input_ids", "labels", "loss_mask"):
                    digest.update(batch[name].numpy().tobytes())
            self.at += group  # or less, at an end
            if self.learns and self.at in self.ends():
                losses = {name: (self.at * 37 + k) % 50 / 10 for k, name in enumerate(self.names)}
                for loader in loaders:
                    loader.observe(losses)
                self.set_live = True
            elif not (self.learns or self.sequential or options) and draw.chance(6):
                self.set_weights(loaders)
        if not options:
            self.state = loaders[0].state_dict()
            self.saved.append((self.at, self.live_to, self.set_live, self.state))
        told = [] if self.set_live else order_hash(loaders[0].blend)
        self.digests.append(" ".join([digest.hexdigest()[:10], *told]))
        for loader in loaders:
            loader.close()

    def ends(self):
        """Where the steps end, as far as a history goes."""
        return [end for _, end in islice(steps(self.rule), 200)]

    def step(self):
        return sum(end <= self.at for end in self.ends())

    def set_weights(self, loaders):
        """At the next step, or later."""
        draw, weights = self.draw, self.draw.weights(self.names)
        following = next(end for end in [0, *self.ends()] if end >= self.at)
        at = draw.one([None, following + draw.number(0, 60)])
        if (following if at is None else at) > self.live_to and at not in self.phases and following not in self.phases:
            [self.live_to] = {loader.set_weights(weights, at) for loader in loaders}
            self.set_live = True

    def back(self):
        """To an earlier checkpoint. Edits since then stay, as they were ahead of a later position."""
        self.at, self.live_to, self.set_live, self.state = self.draw.one(self.saved)

    def new_stage(self):
        """Other weights of the same datasets."""
        self.config.pop("weights", None)
        for name in self.names:
            self.config["datasets"][name]["weight"] = self.draw.one([1, 5])
        self.phases = {at: phase for at, phase in self.phases.items() if at > self.at}
        self.saved, self.set_live, self.live_to, self.moved = [], False, 0, True

    def run(self):
        draw = self.draw
        if not self.sequential and not self.learns:
            samples = [draw.number(0, 10_000) for _ in range(9)]
            read = cl.collate_fn(cl.SampleDataset(self.written(), num_samples=10_000).__getitems__(samples))
            self.digests.append(sha256(read["input_ids"].numpy().tobytes()).hexdigest()[:10])
        launches = 1 if self.sequential else draw.number(1, 5)
        for number in range(launches):
            load = {}
            if self.saved and draw.chance(4):
                self.back()
            if self.saved and draw.chance(2):
                self.edit()
            if self.at and not self.learns and draw.chance(5):
                load = {"new_stage": True}
                self.new_stage()
            elif self.at and draw.chance(5):
                self.config |= {"seq_len": draw.one([6, 9])}
                self.saved, self.moved = [], True
            elif self.saved and draw.chance(3) and self.at in (0, *self.ends()):
                (self.folder / "state.json").write_text(json.dumps(self.state))
                self.config["continue_from"], self.moved = str(self.folder / "state.json"), True
            self.launch(number + 1 == launches, **load)
            self.config.pop("continue_from", None)
        if not (self.sequential or self.moved or "temperature" in self.config):
            self.replay()
        return self.digests

    def replay(self):
        config = {key: value for key, value in self.written().items() if key not in ("weights", "phases", "mixing")}
        config["datasets"] = {
            name: {key: value for key, value in dataset.items() if key != "weight"}
            for name, dataset in config["datasets"].items()
        }
        blend = cl.open_blend({**config, "replay": str(self.folder / "log")})
        with cl.make_dataloader(blend, micro_batch_size=100, num_samples=300, last_batch="partial") as loader:
            read = b"".join(batch["input_ids"].numpy().tobytes() for batch in loader)
        self.digests.append(sha256(read).hexdigest()[:10])


def digests(number, data, folder):
    logging.getLogger("conceptloader").setLevel(logging.ERROR)
    return History(number, data, folder).run()


def all_digests(data, folder):
    return {str(number): digests(number, data, folder / str(number)) for number in range(COUNT)}


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as folder:
        write(Path(folder))
        for number in range(COUNT):
            (Path(folder) / str(number)).mkdir()
        found = all_digests(Path(folder), Path(folder))
    RECORDED.write_text("{\n" + ",\n".join(f"{json.dumps(k)}: {json.dumps(v)}" for k, v in found.items()) + "\n}\n")
