"""What a careful colleague looks at before a long run: a line each, good or bad."""

import os
from collections.abc import Iterator
from itertools import combinations
from time import process_time
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from conceptloader.base.hashing import fingerprint
from conceptloader.config import Blend, View
from conceptloader.config.blend import MOST_UNREAD, unread
from conceptloader.config.mask import Mask
from conceptloader.config.vocabulary import check_vocabulary
from conceptloader.errors import ConfigError
from conceptloader.format.spec import layout as fmt
from conceptloader.format.write.build import open_writer
from conceptloader.ingest.build.unaligned import read_losses
from conceptloader.loader.batch.layout import Batch
from conceptloader.loader.batch.open import open_reader
from conceptloader.order.balance import imbalance
from conceptloader.order.partition import Plan
from conceptloader.run.training import check_balance

_BATCH, _BATCHES, _DOCUMENTS, _STEPS = 16, 16, 1000, 8  # that are looked at
_ALL_OF_THEM = "`packing` reads all of them, and pads"
_MOST_WITHOUT_LOSS = 0.5  # of the labels; more of them are likely to be a mistake


class Finding(NamedTuple):
    """What was looked at, whether it is good, and a sentence."""

    name: str
    good: bool
    text: str


def check_up(
    blend: Blend, num_samples: int | None, vocab_size: int | None, plan: Plan | None = None
) -> Iterator[Finding]:
    """Look at a configuration and at a few hundred of its samples.

    Args:
        blend: The configuration, opened.
        num_samples: Of the run; by default one epoch of all datasets.
        vocab_size: Rows of the model's embedding, if known.
        plan: Steps and ranks of the run, if known.
    """
    total = num_samples or sum(blend.order.sizes)
    yield _vocabulary(blend, vocab_size)
    yield _epochs(blend, total)
    yield from _overlaps([view for view in blend.views if view is not None])
    yield from _documents(blend)
    yield from _tails(blend)
    yield from _masked(blend)
    yield from _samples(blend, min(total, blend.order.num_samples or total))
    yield from _unaligned(blend)
    if plan is not None:
        yield _balance(blend, plan)
    text = "has to be equal on all nodes: release, data, order, configuration; paths and `loader` may differ, but not "
    text += "`balance`"
    yield Finding("ranks", True, f"{fingerprint(blend.facts())} {text}")


def _vocabulary(blend: Blend, size: int | None) -> Finding:
    known = {name: ds.tokenizer for name, ds in blend.datasets.items() if ds.tokenizer is not None}
    sizes = ", ".join(f"{name} {found.vocab_size:,} ({found.name})" for name, found in known.items())
    try:
        check_vocabulary(blend.datasets, size, "the model", "")
    except ConfigError as error:
        return Finding("vocabulary", False, f"{error.path}: {error.found}, expected {error.expected}")
    beside = "" if size is None else f"; the model has {size:,}"
    return Finding("vocabulary", True, f"token ids: {sizes or 'of no known tokenizer'}{beside}")


def _epochs(blend: Blend, total: int) -> Finding:
    order = blend.order
    try:
        order.check_run(total)
        counts = order.counts(total)
    except ConfigError as error:
        return Finding("epochs", False, str(error))
    epochs = {name: count / size for name, count, size in zip(order.names, counts, order.sizes, strict=True)}
    never = [name for name, count in epochs.items() if not count]
    text = f"after {total:,} samples: " + ", ".join(f"{name} {count:.2f}" for name, count in epochs.items())
    return Finding("epochs", not never, text + (f"; never drawn: {', '.join(never)}" if never else ""))


def _documents(blend: Blend) -> Iterator[Finding]:
    """How many documents a window, or the room of a sample, cuts."""
    for view in blend.views:
        if view is None or not view.dataset.num_documents:
            continue
        documents, longer, lost = blend.cut(view, _DOCUMENTS)
        if view.kind == "window":
            text = f"at most {min(1.0, view.count / max(1, documents)):.1%} of {documents:,} are cut by the end of a "
            text += "window; `packing` keeps them whole"
        else:
            text = f"{longer:.1%} of {documents:,} are longer than a sample"
            text += f"; {unread(lost)}" if lost else ""
        yield Finding("documents", lost <= MOST_UNREAD, f"{view.name}: {text}")


def _tails(blend: Blend) -> Iterator[Finding]:
    """Tokens after the last whole window of a dataset or a split, which no sample has."""
    for view in blend.views:
        if view is None or view.kind != "window":
            continue
        first, end = view.member.token_range
        read = view.count * (view.member.seq_len or 0) + 1 if view.count else 0
        share = (end - first - read) / max(1, end - first)
        text = (
            f"{view.name}: {end - first - read:,} of {end - first:,} tokens ({share:.1%}), at the end, are in no window"
        )
        yield Finding("tail", share <= MOST_UNREAD, text if share <= MOST_UNREAD else f"{text}; {_ALL_OF_THEM}")


def _overlaps(views: list[View]) -> Iterator[Finding]:
    """Datasets that have tokens of the same files, such as a subset and its source."""
    for view, other in combinations(sorted(views, key=lambda one: one.dataset.num_tokens), 2):
        if view.dataset.manifest.stream_fingerprint() == other.dataset.manifest.stream_fingerprint():
            one, two = _in_files(view), _in_files(other)
            common = _tokens(one) + _tokens(two) - _tokens(one | two)
            if common:
                text = f"{common / _tokens(one):.1%} of the tokens of {view.name} are in {other.name} too"
                yield Finding("overlap", True, f"{text}: they are seen as part of both")


def _in_files(view: View) -> Mask:
    """The tokens of the files that a view reads, each once."""
    first, end = view.member.token_range
    return Mask.of(*view.dataset.in_files(np.array([first]), np.array([end])), 0)


def _tokens(mask: Mask) -> int:
    return int((mask.stop - mask.start).sum())


def _masked(blend: Blend) -> Iterator[Finding]:
    """What `exclude` takes away in the end."""
    texts = [f"exclude[{entry}] has {count:,} ids of no dataset" for entry, count in blend.unknown_ids.items()]
    for view in blend.views:
        if view is None:
            continue
        first, end = view.member.token_range
        if len(view.own.at):
            count = int((np.clip(view.own.stop, first, end) - np.clip(view.own.start, first, end)).sum())
            texts.append(f"{view.name}: {count:,} tokens alone ({count / (end - first):.1%})")
        if not len(view.mask.at):
            continue
        start, stop = np.clip(view.mask.start, first, end), np.clip(view.mask.stop, first, end)
        tokens = int((stop - start).sum())
        text = f"{view.name}: {tokens:,} of {end - first:,} tokens ({tokens / (end - first):.1%})"
        if view.member.seq_len is not None and view.packs is None:  # a window with any of them gives no loss at all
            low = np.maximum(start - view.start - 1, 0) // view.member.seq_len
            high = np.minimum((stop - 1 - view.start) // view.member.seq_len + 1, view.count)
            before = np.maximum.accumulate(np.append(0, high[:-1]))
            windows = int(np.maximum(high - np.maximum(low, before), 0)[start < stop].sum())
            text += f", and with them {windows:,} of {view.count:,} windows"
        elif view.packs is not None and view.packs.closed:
            text += f", and {view.packs.closed:,} of {view.count:,} packs are empty, in blocks with a shard of them"
        texts.append(text)
    if texts:
        yield Finding("masked", not blend.unknown_ids, "no loss by exclude: " + "; ".join(texts))


def _samples(blend: Blend, total: int) -> Iterator[Finding]:
    """Random samples of the run: labels without loss, weights, concepts."""
    reader, names = open_reader(blend), [member.dataset for member in blend.spec.members.values()]
    chosen = np.random.default_rng(0).integers(0, total, (_BATCHES, _BATCH)).astype(np.uint64)
    held = {track.name for track in reader.layout.tracks if track.holds_concepts}
    levels = dict[str, set[str]]()
    for ds in blend.datasets.values():
        for track in ds.tracks:
            levels.setdefault(track, set()).update(held.intersection(ds.levels[track]))
    levels = {track: found for track, found in sorted(levels.items()) if found}
    without, given, count = list[npt.NDArray[Any]](), list[npt.NDArray[Any]](), chosen.size
    seen: dict[str, set[int]] = {track: set() for track in levels}
    for samples in chosen:  # of a batch is kept what is said of it
        batch = reader.read(samples)
        without += [1 - batch["loss_mask"].mean(1)] if "loss_mask" in batch else []
        given += [batch["loss_weight"].copy()] if "loss_weight" in batch else []
        for track, found in levels.items():
            seen[track].update(*(np.unique(_concepts_of(batch, level)).tolist() for level in found))
    members = blend.order.sample_many(chosen.reshape(-1))[0]
    if without:
        yield _loss(_by_dataset(without, members, names), count)
    if given:
        weights = _by_dataset(given, members, names)
        zero = [name for name, values in weights.items() if not values.any()]
        each = (f"{name} {v.min():g} to {v.max():g}, {(v == 0).mean():.1%} are 0" for name, v in weights.items())
        text = ", ".join(each)
        yield Finding("weights", not zero, f"of the labels of {count:,} samples: {text}")
    for track in levels:
        having = [name for name, ds in blend.datasets.items() if track in ds.tracks]
        known = max((len(blend.datasets[name].vocabulary(track) or ()) for name in having), default=0)
        lacking = sorted(set(blend.datasets) - set(having))
        of = f" of {known:,}" if known else ""
        text = f"{track}: {len(seen[track]):,}{of} concepts in {count:,} samples"
        text += f"; datasets without this track: {', '.join(lacking)}" if lacking else ""
        sizes = (blend.datasets[name].files.kinds[f"{track}.data"].size.max() for name in having)
        yield Finding("concepts", max(sizes, default=0) > 0, text)  # a rare one may be in none of these samples


def _balance(blend: Blend, plan: Plan) -> Finding:
    """How unequal the work of attention of ranks is where it ends at documents, with `loader.balance` and without."""
    if blend.config.loader.balance:
        try:
            check_balance(blend, blend.config.outputs)
        except ConfigError as error:
            return Finding("balance", False, str(error))
    size = plan.schedule.batch_size(0)
    costs_of, found = open_reader(blend).costs(blend.order), list[tuple[float, float]]()
    began = process_time()
    for step in range(_STEPS):
        first = step * size
        if (blend.order.num_samples or first + size) < first + size:
            break
        costs = costs_of(np.arange(first, first + size, dtype=np.uint64)).tolist()
        found.append(imbalance(costs, plan.partition))
    if not found:
        return Finding("balance", True, f"fewer samples than the {size:,} of a step: nothing is dealt")
    spent = (process_time() - began) / len(found)
    come, dealt = np.mean(found, axis=0).tolist()
    text = f"attention within documents: the rank with most has {come:.2f} times the mean, {dealt:.2f} with "
    text += f"loader.balance, which takes {1000 * spent:.1f} ms of CPU a step on each rank"
    return Finding("balance", True, text)


def _by_dataset(
    values: list[npt.NDArray[Any]], members: npt.NDArray[Any], names: list[str]
) -> dict[str, npt.NDArray[Any]]:
    """Rows of batches by the dataset of their sample."""
    rows = np.concatenate(values)
    return {names[k]: rows[members == k] for k in np.unique(members).tolist()}


def _loss(without: dict[str, npt.NDArray[Any]], count: int) -> Finding:
    shares = {name: float(rows.mean()) for name, rows in without.items()}
    text = ", ".join(f"{name} {share:.1%}" for name, share in shares.items())
    good = all(share <= _MOST_WITHOUT_LOSS for share in shares.values())
    return Finding("loss", good, f"labels without a loss in {count:,} samples: {text}")


def _concepts_of(batch: Batch, track: str) -> npt.NDArray[Any]:
    """Ids of all concepts of a batch, in either layout."""
    if f"{track}_values" in batch:
        return np.asarray(batch[f"{track}_values"])
    ids, counts = batch[f"{track}_ids"], batch[f"{track}_counts"]
    return np.asarray(ids[np.arange(ids.shape[-1]) < counts[..., None]])


def _unaligned(blend: Blend) -> Iterator[Finding]:
    """Spans that got no token when the dataset was built here."""
    for name, dataset in blend.datasets.items():
        if "://" in dataset.path or not os.path.exists(os.path.join(dataset.path, fmt.BUILD)):
            continue
        for track, loss in read_losses(open_writer(dataset.path)).items():
            if loss.spans:
                text = f"{name}: {track}: {loss.lost:,} of {loss.spans:,} spans got no token when it was built"
                yield Finding("spans", loss.lost <= 0.01 * loss.spans, text)
