"""A row for each key: what it changes in the base configuration, and how its effect is seen.

Data are compared with those of the reader alone, which tests/oracle shows, under the same configuration, and have
to differ from those without the key. Keys about running have another effect, which is seen in other ways.
"""

import json
import logging
import tempfile
from collections.abc import Callable, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

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
from tests.entries.corpus import Corpus, learned, state_at
from tests.entries.drivers import BATCH, Entry, Taken, added, mean_losses

EFFECT, REFUSED, SAYS, SILENT = "effect", "raises", "warns", "no effect"
ORDERED = ("input_ids", "targets", "sample_index", "dataset_id")
Change = Mapping[str, Any]
Made = Change | Callable[[Corpus], Change]


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
        judge: What became of it.
    """

    key: str
    change: Made
    leaves: tuple[str, ...] = ()
    base: Made = field(default_factory=dict)
    seen: tuple[str, ...] = ORDERED
    steps: int = 4
    named: tuple[str, ...] = ()
    judge: Callable[["Row", Entry, Corpus, Callable[..., Run]], str]

    def configs(self, corpus: Corpus) -> tuple[dict[str, Any], dict[str, Any]]:
        """Without the key, and with it."""
        base = merged(corpus.config, _made(self.base, corpus))
        return base, merged(base, _made(self.change, corpus))

    def names(self, text: str) -> bool:
        return any(name in text for name in self.named or (self.key.split(" ")[0].rpartition(".")[2],))

    def refused(self, run: Run) -> str:
        """REFUSED for an error as it should be, else what is wrong with it; nothing for a run that has not failed."""
        if run.error is None:
            return ""
        said = f"{type(run.error).__name__}: {run.error}"
        if not isinstance(run.error, ConfigError | ResumeError) or not self.names(said):
            return f"fails: {said:.300}"
        return f"raises after {len(run.taken.batches)} batches: {said:.300}" if run.taken.batches else REFUSED


def _made(given: Made, corpus: Corpus) -> Change:
    return given(corpus) if callable(given) else given


def merged(config: Change, change: Change) -> dict[str, Any]:
    """`change` put into it, in sections too; None takes a key out."""
    found = dict(config)
    for key, value in change.items():
        if isinstance(value, Mapping) and isinstance(found.get(key), Mapping):
            found[key] = merged(found[key], value)
        else:
            found[key] = value
    return {key: value for key, value in found.items() if value is not None}


# What should come.


def reference(row: Row, entry: Entry, corpus: Corpus, config: dict[str, Any]) -> list[dict[str, Any]]:
    """The batches that come of a configuration in this entry."""
    micro, lag = entry.micro, entry.lag * ("mixing" in config)
    found: list[dict[str, Any]] = corpus.once(
        lambda: _computed(row, entry, config), "reference", config, row.steps, micro, lag
    )
    return found


def _computed(row: Row, entry: Entry, config: dict[str, Any]) -> list[dict[str, Any]]:
    total, taken = row.steps * BATCH, Taken(None)  # type: ignore[arg-type]
    if "mixing" in config or "replay" in config:
        return _mixed(config, row.steps, entry)
    run = TrainingRun(config, ANY, partition=cl.adapters.Partition(micro_batch_size=1, dp_size=1), rule=None)
    blend, start = run.blend, run.count_start
    reader = open_reader(blend)
    for first in range(start, start + total, entry.micro):
        taken.take(reader.read(np.arange(first, first + entry.micro, dtype=np.uint64)))
    return taken.batches


def _mixed(config: dict[str, Any], steps: int, entry: Entry) -> list[dict[str, Any]]:
    """With weights set by hand, where the configuration says that they change."""
    ((kind, options),) = config.get("mixing", {"replay": config.get("replay")}).items()
    plain = {key: value for key, value in config.items() if key not in ("mixing", "replay")}
    loader = cl.batches({**plain, "loader": {"prefetch_batches": 0}}, micro_batch_size=1, global_batch_size=BATCH)
    names, taken = loader.blend.config.names, Taken(None)  # type: ignore[arg-type]
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


def differs(one: list[dict[str, Any]], other: list[dict[str, Any]], names: tuple[str, ...]) -> str:
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


def _same(one: Any, other: Any) -> bool:
    if isinstance(one, np.ndarray) and isinstance(other, np.ndarray):
        return one.shape == other.shape and bool(np.array_equal(one, other))
    return repr(one) == repr(other)


# What is seen.


def unseen(row: Row, base: Run, found: Run) -> str:
    """Of a key without an effect."""
    return SAYS if any(row.names(text) for text in found.warned - base.warned) else SILENT


def data(row: Row, entry: Entry, corpus: Corpus, run: Callable[..., Run]) -> str:
    """Batches are those of the reader alone, and others than without the key."""
    before, after = row.configs(corpus)
    base, found = run(before), run(after)
    if problem := row.refused(found) or row.refused(base):
        return problem
    expected, plain = reference(row, entry, corpus, after), reference(row, entry, corpus, before)
    assert differs(expected, plain, row.seen), "this change changes nothing"
    if wrong := differs(base.taken.batches, plain, ORDERED):
        return f"wrong without the key: {wrong}"
    wrong = differs(found.taken.batches, expected, row.seen)
    if not wrong and differs(found.taken.batches, base.taken.batches, row.seen):
        return EFFECT
    if not differs(found.taken.batches, base.taken.batches, (*row.seen, *ORDERED)):
        return unseen(row, base, found)
    return f"wrong: {wrong}"


def balanced(row: Row, entry: Entry, corpus: Corpus, run: Callable[..., Run]) -> str:
    """Samples are taken as a step is dealt: here, on one rank and in one micro batch, backwards."""
    before, after = row.configs(corpus)
    base = run(before)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(balance, "deal", lambda costs, micro, ranks: [[[*range(len(costs))][::-1]]])
        found = run(after)
    if problem := row.refused(found) or row.refused(base):
        return problem
    backwards = [
        {name: value[::-1] for name, value in batch.items() if name in ORDERED} for batch in base.taken.batches
    ]
    if not differs(found.taken.batches, base.taken.batches, ORDERED):
        return unseen(row, base, found)
    return differs(found.taken.batches, backwards, ORDERED) or EFFECT


def gate(row: Row, entry: Entry, corpus: Corpus, run: Callable[..., Run]) -> str:
    """An error without the key, and the batches of the reader alone with it."""
    before, after = row.configs(corpus)
    base, found = run(before), run(after)
    if problem := row.refused(found):
        return problem
    if not isinstance(base.error, ConceptloaderError):
        return f"accepted without the key: {base.error!r:.200}"
    wrong = differs(found.taken.batches, reference(row, entry, corpus, after), row.seen)
    return f"wrong: {wrong}" if wrong else EFFECT


def absent(row: Row, entry: Entry, corpus: Corpus, run: Callable[..., Run]) -> str:
    """An array is not in the batch, or not there to be asked for; the rest is as it was."""
    (name,) = row.seen
    before, after = row.configs(corpus)
    base, found = run(before), run(after, asked=(*ORDERED, name))
    if isinstance(found.error, ConfigError) and f"unknown key of a batch {name!r}" in found.error.found:
        asked, found = True, run(after, asked=tuple(one for one in ORDERED if one != name))
    else:
        asked = False
    if problem := row.refused(found):
        return problem
    if wrong := differs(found.taken.batches, base.taken.batches, tuple(one for one in ORDERED if one != name)):
        return f"wrong: {wrong}"
    if asked or (name in base.taken.batches[0] and not any(name in batch for batch in found.taken.batches)):
        return EFFECT
    return unseen(row, base, found)


def measured(row: Row, entry: Entry, corpus: Corpus, run: Callable[..., Run]) -> str:
    """Metrics of each step reach the trainer's logger, or the log where there is none."""
    before, after = row.configs(corpus)
    base, found = run(before), run(after)
    if problem := row.refused(found):
        return problem
    assert not base.taken.metrics
    assert not base.logged
    steps = [line.get("data/consumed_samples", line.get("consumed_samples")) for line in found.taken.metrics]
    if found.logged or steps[: row.steps] == list(range(BATCH, BATCH * row.steps + 1, BATCH)):  # some read ahead
        return EFFECT
    if steps:
        return f"wrong: {steps}"
    return unseen(row, base, found)


def recorded(row: Row, entry: Entry, corpus: Corpus, run: Callable[..., Run]) -> str:
    """Losses of samples are next to the run log: those of the batches that were taken."""
    before, after = row.configs(corpus)
    base, found = run(before), run(after)
    if problem := row.refused(found):
        return problem
    assert not (base.taken.folder / FOLDER).exists()
    if not (found.taken.folder / FOLDER).exists():
        return unseen(row, base, found)
    asked = query(open_run(log=found.taken.folder), "from losses order by sample", steps=(0, row.steps)).to_pylist()
    written = [[line[name] for name in ("step", "sample", "loss", "tokens")] for line in asked]
    expected = []
    for step, batch in enumerate(found.taken.batches[: row.steps]):
        losses, given = added(batch)
        sums = zip(batch["sample_index"].tolist(), losses.sum(1).tolist(), given["loss_mask"].sum(1), strict=True)
        expected += [[step, sample, loss, float(tokens)] for sample, loss, tokens in sums]
    same = np.shape(written) == np.shape(expected) and np.allclose(written, sorted(expected), rtol=1e-5)
    return EFFECT if same else f"wrong: {written} instead of {expected}"


def reading(option: str) -> Callable[[Row, Entry, Corpus, Callable[..., Run]], str]:
    """An option of the threads that read ahead is another one."""

    def judge(row: Row, entry: Entry, corpus: Corpus, run: Callable[..., Run]) -> str:
        before, after = row.configs(corpus)
        base, found = run(before), run(after)
        if problem := row.refused(found):
            return problem
        if found.reading:
            return EFFECT if found.reading[option] != base.reading[option] else SILENT
        return unseen(row, base, found)

    return judge


def ended(row: Row, entry: Entry, corpus: Corpus, run: Callable[..., Run]) -> str:
    """An error at the first sample too many, or, where the end of the run is known, at launch."""
    before, after = row.configs(corpus)
    found = run(after)
    order = cl.open_blend(before).order
    most = after["datasets"]["a"]["max_epochs"] * order.sizes[0]
    limit = next(n for n in range(row.steps * BATCH) if order.counts(n + 1)[0] > most)
    assert limit >= BATCH
    if found.error is None:
        return unseen(row, run(row.configs(corpus)[0]), found)
    if not isinstance(found.error, ConfigError) or not row.names(str(found.error)):
        return f"fails: {found.error!r:.300}"
    batches = len(found.taken.batches)
    allowed = limit // entry.micro - (0 if entry.end_known else entry.lag)  # the last one is read ahead, not trained
    right = batches == 0 or (not entry.end_known and batches == allowed)
    return EFFECT if right else f"raises after {batches} batches, not {allowed}"


def invalid(row: Row, entry: Entry, corpus: Corpus, run: Callable[..., Run]) -> str:
    return row.refused(run(row.configs(corpus)[1])) or SILENT


def pinned(row: Row, entry: Entry, corpus: Corpus, run: Callable[..., Run]) -> str:
    """Without an accelerator there is nothing to pin for."""
    if torch.cuda.is_available():
        pytest.skip("an accelerator is there, and memory is pinned")
    found = run(row.configs(corpus)[1])
    if problem := row.refused(found):
        return problem
    return unseen(row, run(row.configs(corpus)[0]), found)


def own_names(row: Row, entry: Entry, corpus: Corpus, run: Callable[..., Run]) -> str:
    """A field, or a column, of a name that the entry gives itself."""
    outcomes, kind = set(), row.leaves[0].rpartition(".")[2]
    for name in entry.own:
        only = replace(row, named=(name,))
        config = merged(row.configs(corpus)[0], {"outputs": {kind: {name: "inputs"}}})
        found = run(config, asked=(*ORDERED, name))
        outcome = only.refused(found)
        if not outcome:
            expected = reference(row, entry, corpus, config)
            lacking = differs(found.taken.batches, expected, (name,))
            outcome = f"{SILENT} ({name}: {lacking})" if lacking else EFFECT
        outcomes.add(outcome)
    return " / ".join(sorted(outcomes)) or EFFECT


@contextmanager
def listening(patch: pytest.MonkeyPatch) -> Any:
    """Collects what conceptloader logs, and what its reading threads are started with: yields (records, options)."""
    records: list[logging.LogRecord] = []
    options: dict[str, Any] = {}

    class Handler(logging.Handler):
        def emit(self, record: logging.LogRecord) -> None:
            records.append(record)

    class Spy(Prefetcher[Any, Any]):
        def __init__(self, *args: Any, **given: Any) -> None:
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


def drive(entry: Entry, config: dict[str, Any], taken: Taken) -> Run:
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


def _of(dataset: str, **keys: Any) -> Change:
    return {"datasets": {dataset: keys}}


def _weightless(corpus: Corpus, **more: Any) -> Change:
    return {"datasets": {name: {"weight": None} for name in ("a", "b")}, **more}


def _excluded(take: str, **what: Any) -> Change:
    return {"exclude": [{"at": 6, "dataset": "a", "take": take, **what}]}


def _ids(corpus: Corpus) -> list[str]:
    return [f"a-{k}" for k in range(0, 60, 2)]


FILE_WEIGHTS = {"a": 7.0, "b": 1.0}
TOPIC: Change = {"tracks": {"topic": {}}}
PADDED = ("topic_span_index", "topic_num_spans", "topic_spans", "topic_ids")


def row(key: str, change: Made, judge: Any = data, **more: Any) -> Row:
    return Row(**{"key": key, "leaves": (key.split(" ")[0],), "change": change, "judge": judge, **more})


DOREMI = {"reference": {"a": 3.0, "b": 6.0}}
WEIGHTED = {"outputs": {"loss_weight": {"name": "weight"}}}
ROWS: dict[str, Row] = {
    one.key: one
    for one in (
        row("version", {"version": 2}, invalid),
        row("seed", {"seed": 6}),
        row("seq_len", {"seq_len": 32}),
        row("block", {"block": 8}),
        row("order", lambda c: _weightless(c, order="sequential"), leaves=()),
        row("datasets.*.path", lambda c: _of("a", path=c.path("other-a"))),
        row("datasets.*.weight", _of("a", weight=6)),
        row("datasets.*.split", _of("a", split=[0.5, 1])),
        row("datasets.*.tracks", _of("a", tracks=[]), base=TOPIC, seen=PADDED),
        row("datasets.*.epochs", {"datasets": {n: {"weight": None, "epochs": e} for n, e in (("a", 3), ("b", 1))}}),
        row("datasets.*.max_epochs", _of("a", max_epochs=0.05), ended, steps=6),
        row("datasets.*.loss_weight", _of("a", loss_weight=0.3), seen=("loss_weight",)),
        row("split_documents", {"split_documents": [0.5, 1]}),
        row("weights", lambda c: _weightless(c, weights="by_size"), named=("weights",)),
        row("temperature", {"temperature": 3.0}),
        row("phases", {"phases": [{"at": 6, "weights": {"a": 1}}]}, leaves=("phases.at", "phases.weights")),
        row(
            "phases.ramp", {"phases": [{"at": 2, "weights": {"a": 9, "b": 1}, "ramp": {"samples": 12}}]},
            base={"phases": [{"at": 2, "weights": {"a": 9, "b": 1}}]}, leaves=("phases.ramp.samples",),
            steps=6,
        ),
        row(
            "phases.ramp.shape",
            {"phases": [{"at": 2, "weights": {"a": 99, "b": 1}, "ramp": {"samples": 40, "shape": "cosine"}}]},
            base={"phases": [{"at": 2, "weights": {"a": 99, "b": 1}, "ramp": {"samples": 40}}]}, steps=10,
        ),
        row("mixing: odm", {"mixing": {"odm": {}}}, leaves=("mixing",), steps=6, named=("mixing",)),
        row("mixing: doremi", {"mixing": {"doremi": DOREMI}}, leaves=("mixing",), steps=6, named=("mixing",)),
        row(
            "mixing: module:Class", {"mixing": {"conceptloader.testing.controllers:Greedy": {}}},
            leaves=("mixing",), steps=6, named=("mixing",),
        ),
        row(
            "mixing: file", lambda c: {"mixing": {"file": c.file("weights.yaml", "{a: 7, b: 1}")}},
            leaves=("mixing",), steps=6, named=("mixing",),
        ),
        row("replay", lambda c: {"replay": learned(c, batch=6)}, steps=6),
        row("skip", {"skip": [{"at": 5, "count": 7}]}, leaves=("skip.at", "skip.count")),
        row(
            "exclude.tokens", {"exclude": [{"dataset": "a", "tokens": [100, 1500]}]},
            leaves=("exclude.dataset", "exclude.tokens"), named=("exclude",),
        ),
        row(
            "exclude.token_file",
            lambda c: {"exclude": [{"dataset": "a", "token_file": c.file("bad.txt", "100 1500\n")}]},
            named=("exclude",),
        ),
        row(
            "exclude.ids, take: sample", lambda c: _excluded("sample", ids=_ids(c)),
            leaves=("exclude.at", "exclude.dataset", "exclude.ids", "exclude.take"), named=("exclude",),
        ),
        row(
            "exclude.ids, take: own", lambda c: _excluded("own", ids=_ids(c)), leaves=("exclude.take",),
            named=("exclude",),
        ),
        row(
            "exclude.file", lambda c: _excluded("own", file=c.file("ids.txt", "\n".join(_ids(c)))), named=("exclude",)
        ),
        row("packing", {"packing": {}}, leaves=()),
        row("packing.bins", {"packing": {"bins": 3}}, base={"packing": {}}),
        row("packing.overflow", {"packing": {"overflow": "truncate"}}, base={"packing": {}}),
        row(
            "on_seq_len_change", {"on_seq_len_change": "restart"}, gate,
            base=lambda c: {"continue_from": state_at(c, 24, seq_len=32)},
        ),
        row(
            "allow_mixed_tokenizers", {"allow_mixed_tokenizers": True}, gate,
            base=lambda c: _of("b", path=c.path("another-tokenizer")),
        ),
        row(
            "allow_mixed_vocabularies", {"allow_mixed_vocabularies": True}, gate, seen=(*ORDERED, "topic_ids"),
            base=lambda c: {**TOPIC, **_of("b", path=c.path("another-vocabulary"))},
        ),
        row(
            "allowed_roots", lambda c: {"allowed_roots": [c.path("elsewhere")]}, gate,
            base=lambda c: _of("b", path=c.path("here/joined")),
        ),
        row(
            "order.megatron", lambda c: _weightless(c, order={"megatron": c.path("cache")}), invalid,
            named=("megatron", "order"),
        ),
        row("continue_from", lambda c: {"continue_from": state_at(c, 24)}),
        row("outputs.shared_labels", {"outputs": {"shared_labels": True}}, seen=("tokens",)),
        row("outputs.loss_mask", {"outputs": {"loss_mask": False}}, absent, seen=("loss_mask",)),
        row("outputs.position_ids: document", {"outputs": {"position_ids": "document"}}, seen=("position_ids",),
            leaves=("outputs.position_ids",), named=("position_ids",)),
        row("outputs.position_ids: off", {"outputs": {"position_ids": "off"}}, absent, seen=("position_ids",),
            leaves=("outputs.position_ids",), named=("position_ids",)),
        row("outputs.document_ids", {"outputs": {"document_ids": True}}, seen=("document_ids",)),
        row("outputs.cu_seqlens", {"outputs": {"cu_seqlens": True}}, seen=("cu_seqlens",)),
        row("outputs.mask_document_boundaries", {"outputs": {"mask_document_boundaries": True}}),
        row("outputs.dataset_id", {"outputs": {"dataset_id": False}}, absent, seen=("dataset_id",)),
        row("outputs.sample_index", {"outputs": {"sample_index": False}}, absent, seen=("sample_index",)),
        row("outputs.sample_seed", {"outputs": {"sample_seed": True}}, seen=("sample_seed",)),
        row("outputs.loss_on_eos", {"outputs": {"loss_on_eos": False}}),
        row(
            "outputs.ignore_index", {"outputs": {"ignore_index": -7}}, base={"outputs": {"loss_on_eos": False}},
            seen=("labels",),
        ),
        row(
            "outputs.loss_weight: field", {"outputs": {"loss_weight": "weight"}}, seen=("loss_weight",),
            leaves=("outputs.loss_weight.name",), named=("loss_weight",),
        ),
        row(
            "outputs.loss_weight.missing", {"outputs": {"loss_weight": {"missing": 0.5}}}, gate,
            seen=("loss_weight",), named=("loss_weight",),
            base=lambda c: {**WEIGHTED, **_of("b", path=c.path("unweighted"))},
        ),
        row(
            "outputs.loss_weight.outside", {"outputs": {"loss_weight": {"name": "length", "outside": 0.25}}},
            seen=("loss_weight",), named=("loss_weight",),
        ),
        row(
            "outputs.loss_weight: list",
            {"outputs": {"loss_weight": ["weight", {"name": "length", "outside": 0.25}]}},
            leaves=("outputs.loss_weight.name",), seen=("loss_weight",), named=("loss_weight",),
        ),
        row("outputs.fields", {"outputs": {"fields": {"parity": "labels"}}}, seen=("parity",)),
        row(
            "outputs.fields, with a name that the entry uses", {}, own_names, leaves=("outputs.fields",),
            base=lambda c: {"datasets": {"b": {"path": c.path("named"), "weight": None}, "a": None}},
        ),
        row("outputs.columns", {"outputs": {"columns": {"teacher": "labels"}}}, seen=("teacher",)),
        row(
            "outputs.columns, with missing and dtype: stored",
            {"outputs": {"columns": {"halves": {"at": "inputs", "missing": 7, "dtype": "stored"}}}},
            leaves=("outputs.columns",), base=lambda c: _of("b", path=c.path("unweighted")), seen=("halves",),
        ),
        row(
            "outputs.columns, with a name that the entry uses", {}, own_names, leaves=("outputs.columns",),
            base=lambda c: {"datasets": {"b": {"path": c.path("named"), "weight": None}, "a": None}},
        ),
        row("tracks", TOPIC, leaves=(), seen=PADDED),
        row(
            "tracks, several numbers a span", {"tracks": {"vector": {}}}, leaves=(),
            seen=("vector_span_index", "vector_values", "vector_counts"),
        ),
        row(
            "tracks.*.layout: ragged", {"tracks": {"topic": {"layout": "ragged"}}}, leaves=("tracks.*.layout",),
            seen=("topic_span_index", "topic_values", "topic_offsets"), named=("layout", "ragged", "no row"),
        ),
        row(
            "tracks.*.layout: records", {"tracks": {"topic": {"layout": "records"}}}, leaves=("tracks.*.layout",),
            seen=("topic_span_index", "topic_records"), named=("layout", "records", "moves nothing else"),
        ),
        row(
            "tracks.*.max_spans", {"tracks": {"topic": {"max_spans": 1, "overflow": "truncate"}}}, base=TOPIC,
            leaves=("tracks.*.max_spans",), seen=PADDED,
        ),
        row(
            "tracks.*.max_concepts", {"tracks": {"topic": {"max_concepts": 1, "overflow": "truncate"}}}, base=TOPIC,
            seen=PADDED,
        ),
        row(
            "tracks.*.overflow", {"tracks": {"topic": {"overflow": "mark"}}},
            base={"tracks": {"topic": {"max_spans": 1, "overflow": "truncate"}}}, seen=PADDED,
        ),
        row("loader.num_threads", {"loader": {"num_threads": 3}}, reading("threads")),
        row("loader.prefetch_batches", {"loader": {"prefetch_batches": 2}}, reading("depth")),
        row("loader.prefetch_bytes", {"loader": {"prefetch_bytes": 1 << 20}}, reading("most")),
        row("loader.warn_after_s", {"loader": {"warn_after_s": 7}}, reading("warn_after_s")),
        row("loader.timeout_s", {"loader": {"timeout_s": 70}}, reading("timeout_s")),
        row("loader.balance", {"loader": {"balance": True}}, balanced, base={"outputs": {"document_ids": True}}),
        row("loader.pin_memory", {"loader": {"pin_memory": True}}, pinned),
        row(
            "loader.verify_files", {"loader": {"verify_files": False}}, gate,
            base=lambda c: _of("b", path=c.path("corrupt")),
        ),
        row("metrics", {"metrics": True}, measured, leaves=("metrics.losses",)),
        row(
            "metrics.losses", {"metrics": {"losses": True}}, recorded, named=("metrics",),
            seen=("sample_index", "dataset_id"),
        ),
    )
}  # fmt: skip


@dataclass
class Runs:
    """The runs of an entry, each once."""

    entry: Entry
    corpus: Corpus
    done: dict[str, Run] = field(default_factory=dict, repr=False)

    def outcome(self, row: Row) -> str:
        """Of the cell."""

        def run(config: dict[str, Any], asked: tuple[str, ...] = ()) -> Run:
            wanted = asked or tuple(dict.fromkeys((*row.seen, *ORDERED)))
            known = self.corpus.once(lambda: _names(config), "names", config) if not asked else None
            names = tuple(name for name in wanted if known is None or name in known)
            key = json.dumps([config, names, row.steps])
            if key not in self.done:
                folder = Path(tempfile.mkdtemp(dir=self.corpus.root))
                taken = Taken(folder, row.steps * BATCH // self.entry.micro, names)
                self.done[key] = drive(self.entry, config, taken)
            return self.done[key]

        return row.judge(row, self.entry, self.corpus, run)


def _names(config: dict[str, Any]) -> set[str] | None:
    """Of a batch; None for a configuration that cannot be opened."""
    try:
        return batch_layout(cl.open_blend(config)).names()
    except ConceptloaderError:
        return None
