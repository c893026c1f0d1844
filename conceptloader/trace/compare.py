"""The steps of a run whose batches another configuration would change.

Candidates come from what decides a sample: the order, the masks, and the files of datasets whose checksums differ; the
inverse of the order says which samples touch them. Only candidates are read, with both configurations, and of a step no
more than up to the first that differs: the answer is exact.
"""

import os
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from dataclasses import replace
from functools import cache, partial
from typing import Any

import numpy as np

from conceptloader.base.hashing import derive_key
from conceptloader.batch.open import RANDOM, decide_layout
from conceptloader.batch.reader import BatchReader
from conceptloader.blend import Outputs, View, load_config, open_blend
from conceptloader.blend.mask import NEVER, Mask
from conceptloader.errors import ConfigError
from conceptloader.format.read.dataset import Dataset
from conceptloader.format.spec.columns import Ints
from conceptloader.order.progress.resume import splice
from conceptloader.order.progress.spec import OrderSpec
from conceptloader.trace.bulk import sample_ranges
from conceptloader.trace.past import defaults_of
from conceptloader.trace.ranges import by_value, document_ranges, samples_touching
from conceptloader.trace.run import Run

_SAMPLES = 1 << 17
_NONE = np.zeros(0, np.int64)
_NUMBERED = "dataset_id", "sample_index"  # by each configuration for itself


def open_other(
    run: Run, config: str | os.PathLike[str] | Mapping[str, Any], base_dir: str | os.PathLike[str] | None = None
) -> Run:
    """Another configuration as if the steps of `run` were trained with it.

    Its steps have the batch sizes of `run`. Weights that were set while that was going hold here, too.

    Args:
        run: The run, see `open_run`.
        config: As for `load_config`.
        base_dir: As for `load_config`.

    Raises:
        ConfigError: An option or argument breaks a rule, or it lacks a dataset of such weights.
    """
    whole = run.whole_order
    defaults = defaults_of(whole, run.blend.config.seq_len)
    blend = open_blend(load_config(config, defaults=defaults, base_dir=base_dir))
    live = [phase for phase in whole.phases if phase.start in whole.live and phase.start >= whole.decided(whole.base)]
    ended = [steps for phase in live if (steps := blend.spec.ended(phase.start))]
    kept = (phase for phase in blend.spec.phases if not any(phase.start in steps for steps in ended))
    phases = sorted([*kept, *live], key=lambda phase: phase.start)
    spec = replace(blend.spec, phases=tuple(phases), live=tuple(phase.start for phase in live))
    return Run(blend=replace(blend, spec=splice(whole, spec, whole.base)), history=run.history)


def differing_steps(run: Run, other: Run, stop: int) -> Iterator[int]:
    """The steps of which a batch has other arrays in `other`, in order.

    Compared are all arrays but dataset_id, which counts the names in a configuration. That there is more room for
    spans, and more padding, is no difference.

    Args:
        run: The run, see `open_run`.
        other: What `open_other` made of another configuration.
        stop: The step before which to look.

    Yields:
        Numbers of steps.

    Raises:
        ConfigError: If steps are not known, or a dataset that was read has left a configuration.
    """
    ranges, last = list(sample_ranges(run, 0, stop)), -1
    total = max((high for _, high, *_ in ranges), default=0)
    candidates, reader = cache(partial(_candidates, other, total)), cache(_reader)
    for low, high, plan, era in ranges:
        for at in range(low, high, _SAMPLES):
            samples = candidates(era)(at, min(at + _SAMPLES, high))
            for sample, step in zip(samples, plan.schedule.steps_of(samples)[0].tolist(), strict=True):
                pairs = (era, other), (other, era)
                if step != last and not _equal(*(_arrays(reader, *pair, sample) for pair in pairs)):
                    last = step
                    yield step


def _candidates(other: Run, total: int, run: Run) -> Callable[[int, int], Any]:
    """A function of [first, end), up to `total`: the samples there that may differ, ascending."""
    one, two = run.whole_order, other.blend.spec
    if _settings(run) != _settings(other):
        return partial(np.arange, dtype=np.uint64)
    names, theirs, start = list(one.members), list(two.members), min(_same_order_until(one, two), total)
    partner = np.array([names.index(name) if name in names else -1 for name in theirs])
    touched = [_touched(run, other, k, theirs.index(name)) if name in theirs else _NONE for k, name in enumerate(names)]
    drawn = [_NONE, *(run.draws(k, some, start)[2] for k, some in enumerate(touched) if len(some))]
    before = np.unique(np.concatenate(drawn)).astype(np.uint64)

    def within(first: int, end: int) -> Any:
        low, high = np.searchsorted(before, [first, end])
        samples = np.arange(max(first, start), max(end, start), dtype=np.uint64)
        if len(samples):
            (members, _, windows), (others, _, numbers) = (x.blend.order.sample_many(samples) for x in (run, other))
            some = (partner[others] != members) | (windows != numbers)
            for k, places in by_value(members):
                some[places] |= np.isin(windows[places].astype(np.int64), touched[k])
            samples = samples[some]
        return np.concatenate([before[low:high], samples])

    return within


def _settings(run: Run) -> Any:
    """What decides the arrays of all samples alike."""
    config = run.blend.config
    return config.outputs, config.tracks, config.seq_len, config.seed if config.outputs.sample_seed else None


def _same_order_until(one: OrderSpec, two: OrderSpec) -> int:
    """A sample before which the order is the same: that names the same window of a member of the same name."""
    sizes, other_sizes = ({name: member.windows for name, member in spec.members.items()} for spec in (one, two))
    if (one.order, one.seed, one.block) != (two.order, two.seed, two.block) or any(
        sizes[name] != other_sizes[name] for name in sizes.keys() & other_sizes.keys()
    ):
        return 0
    if one.order != "shuffled":
        return NEVER if sizes == other_sizes else 0
    phases, other_phases = ({(p.start, tuple(sorted(p.weights.items()))) for p in spec.phases} for spec in (one, two))
    passed = sum(skip.count for skip in one.skips)  # a phase starts at a global sample, that many later at most
    starts = [max(0, at - passed) for at, _ in phases ^ other_phases]
    return min([*starts, *(skip.at for skip in {*one.skips} ^ {*two.skips})], default=NEVER)


def _touched(run: Run, other: Run, index: int, partner: int) -> Ints:
    """The windows of a member that may hold something else in that of the same name."""
    one, two = run.blend.views[index], other.blend.views[partner]
    if one is None or two is None:
        return _NONE if one is two else np.arange(run.blend.order.sizes[index])
    member, changed = run.member(index), _stored_otherwise(one, two)
    if changed is None or one.loss_weight != two.loss_weight:
        return np.arange(one.count)
    changed |= _masked_otherwise(one, two)
    if not len(changed.start):
        return _NONE
    windows = samples_touching(member, changed.start, changed.stop, 0, one.count)
    if member.by_document:
        windows = windows[changed.since(*document_ranges(one.dataset, one.start + windows)) < NEVER]
    return windows


def _masked_otherwise(one: View, two: View) -> Mask:
    """Tokens that are masked from another sample on, and those of shards that only one of the two leaves closed."""
    pairs = [*zip(_masks(one), _masks(two), strict=True)]
    starts = np.array(one.dataset.shard_starts)
    ends = [column for pair in pairs for mask in pair for column in (mask.start, mask.stop)]
    bounds = np.unique(np.concatenate([starts, *ends]))
    start, stop = bounds[:-1], bounds[1:]
    differ = np.logical_or.reduce([a.since(start, stop) != b.since(start, stop) for a, b in pairs])
    closed = one.mask.closed(one.dataset) != two.mask.closed(two.dataset)
    if closed.any():
        differ |= closed[np.searchsorted(starts, start, side="right") - 1]
    return Mask.of(start[differ], stop[differ], 0)


def _masks(view: View) -> list[Mask]:
    return [view.mask, view.holes.own, view.holes.labels]


def _stored_otherwise(one: View, two: View) -> Mask | None:
    """Tokens of shards of which a file differs; None where any token may, as windows or whole datasets do."""
    a, b = one.dataset, two.dataset
    cuts = [(m.windows, m.seq_len, m.token_range, m.packing) for m in (one.member, two.member)]
    if cuts[0] != cuts[1] or one.tracks != two.tracks:
        return None
    if a.identity == b.identity and a.manifest.identity == b.manifest.identity:
        return Mask.of(_NONE, _NONE, 0)
    shards = _shards(a), _shards(b)
    if a.runs is not None or b.runs is not None or shards[0][0] != shards[1][0]:
        return None
    differ = np.array([x != y or None in x for x, y in zip(shards[0][1], shards[1][1], strict=True)])
    starts = np.array(a.shard_starts)
    some = differ & (starts[:-1] < starts[1:])
    return Mask.of(starts[:-1][some], starts[1:][some], 0)


def _shards(dataset: Dataset) -> tuple[Any, list[list[Any]]]:
    """What all shards have in common, and checksums of each; None among these: there is none."""
    manifest, table = dataset.manifest, dataset.manifest.shards
    tracks = {name: (track.codec, dict(track.parameters), track.vocabulary) for name, track in dataset.tracks.items()}
    counts = [column.tolist() for column in (table.tokens, table.documents, table.layout, table.offset)]
    files = {kind: column for kind, column in table.files.items() if (column.size >= 0).any()}
    sums = [["" if column.size[k] < 0 else column.checksum[k] for column in files.values()] for k in range(len(table))]
    return (manifest.mode, manifest.tokenizer, manifest.layouts, tracks, sorted(files), counts), sums


def _reader(run: Run, other: Run, seq_len: int, packed: bool) -> BatchReader:
    """Of the samples with so many tokens. Its arrays have room for the spans of both."""
    config = run.blend.config
    views, more = (one.blend.views_of(seq_len, packed) for one in (run, other))
    layout = decide_layout(views, seq_len, config.outputs, config.tracks)
    if config.tracks == other.blend.config.tracks:
        with suppress(ConfigError):  # tracks of other kinds, which have other arrays in any case
            layout = replace(layout, tracks=decide_layout([*views, *more], seq_len, Outputs(), config.tracks).tracks)
    return BatchReader(run.blend.order, views, replace(layout, random_key=derive_key(config.seed, RANDOM)))


def _arrays(reader: Callable[..., BatchReader], run: Run, other: Run, sample: Any) -> dict[str, Any]:
    asked = np.array([sample], np.uint64)
    member = run.member(int(run.blend.order.sample_many(asked)[0][0]))
    batch = reader(run, other, member.seq_len, member.kind == "pack").read(asked)
    return {key: value for key, value in batch.items() if key not in _NUMBERED}


def _equal(one: Any, two: Any) -> bool:
    """Whether values are the same to the bit, NaN included."""
    if isinstance(one, np.ndarray):
        return (one.dtype, one.shape, one.tobytes()) == (two.dtype, two.shape, two.tobytes())
    if isinstance(one, dict):
        return one.keys() == two.keys() and all(_equal(value, two[key]) for key, value in one.items())
    if isinstance(one, (list, tuple)):
        return len(one) == len(two) and all(map(_equal, one, two))
    return bool(one == two or (one != one and two != two))
