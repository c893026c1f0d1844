"""A row for each key, of rows.yaml: what it changes in the base configuration, and how its effect is seen.

Data are compared with those of the reader alone, which tests/oracle shows, under the same configuration, and have
to differ from those without the key. Keys about running have another effect, which is seen in other ways.
"""

import json
import logging
import tempfile
from collections.abc import Callable, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import yaml

import conceptloader as cl
from conceptloader.errors import ConceptloaderError, ConfigError, ResumeError
from conceptloader.loader.batch import loader as batch_loader
from conceptloader.loader.batch.open import batch_layout, open_reader
from conceptloader.loader.batch.prefetch import Prefetcher
from conceptloader.order import balance
from conceptloader.run.entry import ANY
from conceptloader.run.losses import FOLDER
from conceptloader.run.mixing import learning
from conceptloader.run.mixing.controller import shares
from conceptloader.run.training import TrainingRun
from conceptloader.trace import open_run, query
from tests.entries.corpus import Corpus
from tests.entries.drivers import BATCH, ENTRIES, OWN_NAMES, Entry, Taken, added, mean_losses

EFFECT, REFUSED, SAYS, SILENT = "effect", "raises", "warns", "no effect"
ORDERED = ("input_ids", "targets", "sample_index", "dataset_id")
Change = Mapping[str, Any]


@dataclass(frozen=True)
class Run:
    """What became of a configuration in an entry: what was taken, the error that ended it, and what was logged."""

    taken: Taken
    error: BaseException | None
    warned: frozenset[str]
    logged: int  # steps of which metrics went to the log
    reading: dict[str, Any] = field(default_factory=dict)  # options of the threads that read ahead


@dataclass(frozen=True, kw_only=True)
class Row:
    """A key.

    Attributes:
        key: Its name, and what of it, if it has several rows.
        leaves: Keys of the schema of which it is a test; by default `key`.
        change: What sets it.
        base: What both configurations have besides.
        seen: Names of a batch by which its effect is seen.
        steps: Of the training.
        named: Words one of which an error or a warning has to hold; by default the last name in `key`.
        judge: The method of Cell that says what became of it.
    """

    key: str
    change: Change = field(default_factory=dict)
    leaves: tuple[str, ...] = ()
    base: Change = field(default_factory=dict)
    seen: tuple[str, ...] = ORDERED
    steps: int = 4
    named: tuple[str, ...] = ()
    judge: str = "data"

    def names(self, text):
        return any(name in text for name in self.named or (self.key.split(" ")[0].rpartition(".")[2],))

    def refused(self, run):
        """REFUSED for an error as it should be, else what is wrong with it; nothing for a run that has not failed."""
        if run.error is None:
            return ""
        said = f"{type(run.error).__name__}: {run.error}"
        if not isinstance(run.error, ConfigError | ResumeError) or not self.names(said):
            return f"fails: {said:.300}"
        return f"raises after {len(run.taken.batches)} batches: {said:.300}" if run.taken.batches else REFUSED


def merged(config, change):
    """`change` put into it, in sections too; None takes a key out."""
    found = dict(config)
    for key, value in change.items():
        if isinstance(value, Mapping) and isinstance(found.get(key), Mapping):
            found[key] = merged(found[key], value)
        else:
            found[key] = value
    return {key: value for key, value in found.items() if value is not None}


# What should come.


def reference(row, entry, corpus, config):
    """The batches that come of a configuration in this entry."""
    micro, lag = entry.micro, entry.lag * ("mixing" in config)
    return corpus.once(lambda: _computed(row, entry, config), "reference", config, row.steps, micro, lag)


def _computed(row, entry, config):
    total, taken = row.steps * BATCH, Taken(None)
    if "mixing" in config or "replay" in config:
        return _mixed(config, row.steps, entry)
    run = TrainingRun(config, ANY, partition=cl.adapters.Partition(micro_batch_size=1, dp_size=1), rule=None)
    blend, start = run.blend, run.count_start
    reader = open_reader(blend)
    for first in range(start, start + total, entry.micro):
        taken.take(reader.read(np.arange(first, first + entry.micro, dtype=np.uint64)))
    return taken.batches


def _mixed(config, steps, entry):
    """With weights set by hand, where the configuration says that they change."""
    ((kind, options),) = config.get("mixing", {"replay": config.get("replay")}).items()
    plain = {key: value for key, value in config.items() if key not in ("mixing", "replay")}
    loader = cl.batches({**plain, "loader": {"prefetch_batches": 0}}, micro_batch_size=1, global_batch_size=BATCH)
    names, taken = loader.blend.config.names, Taken(None)
    controller = None
    if kind == "file":
        loader.set_weights(FILE_WEIGHTS, at=(2 + entry.lag) * BATCH)
    elif kind == "replay":
        log = cl.adapters.RunLog(options)
        for one in log.spec_at(log.starts[-1]).live:
            weights = {name.partition("@")[0]: float(weight) for name, weight in one.weights.items()}
            loader.set_weights(weights, at=one.at)
    else:
        start = shares({name: plain["datasets"][name]["weight"] for name in names})
        controller = learning.controller(kind, options, start)
    batches = iter(loader)
    for step in range(steps):
        rows = [next(batches) for _ in range(BATCH)]
        given = taken.take({name: np.concatenate([row[name] for row in rows]) for name in rows[0]})
        if controller is not None:
            weights = controller.observe(step, mean_losses(given, names))
            if weights is not None:
                loader.set_weights(weights, at=(step + 1 + entry.lag) * BATCH)
    loader.close()
    per_batch = BATCH // entry.micro
    return [
        {name: value[k * entry.micro : (k + 1) * entry.micro] for name, value in batch.items()}
        for batch in taken.batches
        for k in range(per_batch)
    ]


def differs(one, other, names):
    """The first name by which two lists of batches differ, of those that both have; "" for none."""
    if len(one) != len(other):
        return f"{len(one)} batches, not {len(other)}"
    for name in names:
        for number, (a, b) in enumerate(zip(one, other, strict=True)):
            if (name in a) != (name in b):
                return f"no {name}"
            if name in a and not _same(a[name], b[name]):
                return f"{name} of batch {number}"
    return ""


def _same(one, other):
    if isinstance(one, np.ndarray) and isinstance(other, np.ndarray):
        return one.shape == other.shape and bool(np.array_equal(one, other))
    return repr(one) == repr(other)


# What is seen.


@dataclass(frozen=True)
class Cell:
    """A key in an entry, and what is seen of it.

    run: trains a configuration. Every judge says EFFECT, REFUSED, SAYS or SILENT, or what is wrong.
    """

    row: Row
    entry: Entry
    corpus: Corpus
    run: Callable[..., Run]

    @cached_property
    def configs(self):
        """Without the key, and with it."""
        base = merged(self.corpus.config, self.corpus.made(self.row.base))
        return base, merged(base, self.corpus.made(self.row.change))

    @cached_property
    def base(self):
        return self.run(self.configs[0])

    @cached_property
    def found(self):
        with pytest.MonkeyPatch.context() as patch:
            if self.row.judge == "balanced":
                patch.setattr(balance, "deal", lambda costs, micro, ranks: [[[*range(len(costs))][::-1]]])
            return self.run(self.configs[1])

    def outcome(self):
        judge, _, option = self.row.judge.partition(" ")
        if judge in ("gate", "ended", "own_names", "absent"):
            return getattr(self, judge)()
        problem = self.row.refused(self.found) or (judge != "pinned" and self.row.refused(self.base))
        return problem or getattr(self, judge)(*[option] * bool(option))

    def wanted(self, config):
        """The batches of the reader alone."""
        return reference(self.row, self.entry, self.corpus, config)

    def unseen(self):
        """Of a key without an effect."""
        return SAYS if any(map(self.row.names, self.found.warned - self.base.warned)) else SILENT

    def data(self):
        """Batches are those of the reader alone, and others than without the key."""
        base, found, seen = self.base.taken.batches, self.found.taken.batches, self.row.seen
        plain, expected = map(self.wanted, self.configs)
        assert differs(expected, plain, seen), "this change changes nothing"
        if wrong := differs(base, plain, ORDERED):
            return f"wrong without the key: {wrong}"
        wrong = differs(found, expected, seen)
        if not wrong and differs(found, base, seen):
            return EFFECT
        return f"wrong: {wrong}" if differs(found, base, (*seen, *ORDERED)) else self.unseen()

    def balanced(self):
        """Samples are taken as a step is dealt: here, on one rank and in one micro batch, backwards."""
        base, found = self.base.taken.batches, self.found.taken.batches
        if not differs(found, base, ORDERED):
            return self.unseen()
        backwards = [{name: value[::-1] for name, value in batch.items() if name in ORDERED} for batch in base]
        return differs(found, backwards, ORDERED) or EFFECT

    def gate(self):
        """An error without the key, and the batches of the reader alone with it."""
        if problem := self.row.refused(self.found):
            return problem
        if not isinstance(self.base.error, ConceptloaderError):
            return f"accepted without the key: {self.base.error!r:.200}"
        wrong = differs(self.found.taken.batches, self.wanted(self.configs[1]), self.row.seen)
        return f"wrong: {wrong}" if wrong else EFFECT

    def absent(self):
        """An array is not in the batch, or not there to be asked for; the rest is as it was."""
        (name,) = self.row.seen
        rest = tuple(one for one in ORDERED if one != name)
        found = self.run(self.configs[1], asked=(*ORDERED, name))
        asked = isinstance(found.error, ConfigError) and f"unknown key of a batch {name!r}" in found.error.found
        if asked:
            found = self.run(self.configs[1], asked=rest)
        if problem := self.row.refused(found):
            return problem
        if wrong := differs(found.taken.batches, self.base.taken.batches, rest):
            return f"wrong: {wrong}"
        if asked or (name in self.base.taken.batches[0] and not any(name in batch for batch in found.taken.batches)):
            return EFFECT
        return self.unseen()

    def measured(self):
        """Metrics of each step reach the trainer's logger, or the log where there is none."""
        assert not self.base.taken.metrics
        assert not self.base.logged
        found = self.found.taken.metrics
        steps = [line.get("data/consumed_samples", line.get("consumed_samples")) for line in found]
        wanted = [*range(BATCH, BATCH * self.row.steps + 1, BATCH)]
        if self.found.logged or steps[: self.row.steps] == wanted:  # some read ahead
            return EFFECT
        return f"wrong: {steps}" if steps else self.unseen()

    def recorded(self):
        """Losses of samples are next to the run log: those of the batches that were taken."""
        taken, steps = self.found.taken, self.row.steps
        assert not (self.base.taken.folder / FOLDER).exists()
        if not (taken.folder / FOLDER).exists():
            return self.unseen()
        asked = query(open_run(log=taken.folder), "from losses order by sample", steps=(0, steps)).to_pylist()
        written = [[line[name] for name in ("step", "sample", "loss", "tokens")] for line in asked]
        expected = []
        for step, batch in enumerate(taken.batches[:steps]):
            losses, given = added(batch)
            sums = zip(batch["sample_index"].tolist(), losses.sum(1).tolist(), given["loss_mask"].sum(1), strict=True)
            expected += [[step, sample, loss, float(tokens)] for sample, loss, tokens in sums]
        same = np.shape(written) == np.shape(expected) and np.allclose(written, sorted(expected), rtol=1e-5)
        return EFFECT if same else f"wrong: {written} instead of {expected}"

    def reading(self, option):
        """An option of the threads that read ahead is another one."""
        if self.found.reading:
            return EFFECT if self.found.reading[option] != self.base.reading[option] else SILENT
        return self.unseen()

    def ended(self):
        """An error at the first sample too many, or, where the end of the run is known, at launch."""
        order, error = cl.open_blend(self.configs[0]).order, self.found.error
        most = self.configs[1]["datasets"]["a"]["max_epochs"] * order.sizes[0]
        limit = next(n for n in range(self.row.steps * BATCH) if order.counts(n + 1)[0] > most)
        assert limit >= BATCH
        if error is None:
            return self.unseen()
        if not isinstance(error, ConfigError) or not self.row.names(str(error)):
            return f"fails: {error!r:.300}"
        known, batches = self.entry.end_known, len(self.found.taken.batches)
        allowed = limit // self.entry.micro - (not known) * self.entry.lag  # the last one is read ahead, not trained
        right = batches == 0 or (not known and batches == allowed)
        return EFFECT if right else f"raises after {batches} batches, not {allowed}"

    def invalid(self):
        return SILENT

    def pinned(self):
        """Without an accelerator there is nothing to pin for."""
        if torch.cuda.is_available():
            pytest.skip("an accelerator is there, and memory is pinned")
        return self.unseen()

    def own_names(self):
        """A field, or a column, of a name that the entry gives itself."""
        outcomes, kind = set(), self.row.leaves[0].rpartition(".")[2]
        for name in self.entry.own:
            config = merged(self.configs[0], {"outputs": {kind: {name: "inputs"}}})
            found = self.run(config, asked=(*ORDERED, name))
            outcome = replace(self.row, named=(name,)).refused(found)
            if not outcome:
                lacking = differs(found.taken.batches, self.wanted(config), (name,))
                outcome = f"{SILENT} ({name}: {lacking})" if lacking else EFFECT
            outcomes.add(outcome)
        return " / ".join(sorted(outcomes)) or EFFECT


@contextmanager
def listening(patch):
    """Collects what conceptloader logs, and what its reading threads are started with: yields (records, options)."""
    records = []
    options = {}

    class Handler(logging.Handler):
        def emit(self, record):
            records.append(record)

    class Spy(Prefetcher[Any, Any]):
        def __init__(self, *args, **given):
            options.update(given)
            super().__init__(*args, **given)

    patch.setattr(batch_loader, "Prefetcher", Spy)
    handler, logger = Handler(), logging.getLogger("conceptloader")
    level = logger.level
    logger.addHandler(handler)
    logger.setLevel(logging.INFO)
    try:
        yield records, options
    finally:
        logger.removeHandler(handler)
        logger.setLevel(level)


def drive(entry, config, taken):
    """A configuration through an entry."""
    error = None
    with pytest.MonkeyPatch.context() as patch, listening(patch) as (records, options):
        try:
            entry.drive(config, taken, patch)
        except Exception as raised:
            error = raised
    warned = frozenset(record.getMessage() for record in records if record.levelno >= logging.WARNING)
    logged = sum("micro batches ahead" in record.getMessage() for record in records)
    return Run(taken, error, warned, logged, options)


# The rows.


FILE_WEIGHTS = {"a": 7.0, "b": 1.0}
TABLE = yaml.safe_load(Path(__file__).with_name("rows.yaml").read_text())
PADDED = ("topic_span_index", "topic_num_spans", "topic_spans", "topic_ids")


def _row(key, given):
    found = {name: tuple(value) if isinstance(value, list) else value for name, value in given.items()}
    if found.get("seen") == "padded":
        found["seen"] = PADDED
    return Row(**{"key": key, "leaves": (key.split(" ")[0],), **found})


ROWS = {key: _row(key, given) for key, given in TABLE["rows"].items()}
GROUPS = {"every": ENTRIES, "with own names": OWN_NAMES}


def expected(key, entry):
    """The outcome of a cell."""
    others = (one for one in TABLE["others"] if key.startswith(tuple(one["rows"])))
    found = (one["outcome"] for one in others if entry in GROUPS.get(str(one["entries"]), one["entries"]))
    return next(found, EFFECT)


@dataclass
class Runs:
    """The runs of an entry, each once."""

    entry: Entry
    corpus: Corpus
    done: dict[str, Run] = field(default_factory=dict, repr=False)

    def outcome(self, row):
        """Of the cell."""

        def run(config, asked=()):
            wanted = asked or tuple(dict.fromkeys((*row.seen, *ORDERED)))
            known = self.corpus.once(lambda: _names(config), "names", config) if not asked else None
            names = tuple(name for name in wanted if known is None or name in known)
            key = json.dumps([config, names, row.steps])
            if key not in self.done:
                folder = Path(tempfile.mkdtemp(dir=self.corpus.root))
                taken = Taken(folder, row.steps * BATCH // self.entry.micro, names)
                self.done[key] = drive(self.entry, config, taken)
            return self.done[key]

        return Cell(row, self.entry, self.corpus, run).outcome()


def _names(config):
    """Of a batch; None for a configuration that cannot be opened."""
    try:
        return batch_layout(cl.open_blend(config)).names()
    except ConceptloaderError:
        return None
