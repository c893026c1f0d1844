"""Receipts: a proof for anyone that a document was in these steps of a run and in no others.

docs/receipts-format.md has the bytes of everything here; examples/receipt/verify_receipt.py checks a receipt without
this package.
"""

import base64
import hashlib
import json
import os
from bisect import bisect_right
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import Any

import numpy as np

from conceptloader.base.hashing import canonical_json
from conceptloader.blend.exclude import Excluded
from conceptloader.blend.mask import NOTHING, Mask
from conceptloader.errors import ConfigError, FormatError
from conceptloader.format.read.dataset import Dataset
from conceptloader.order.progress.resume import compare
from conceptloader.order.progress.runlog import Segment
from conceptloader.receipts import merkle
from conceptloader.receipts.trees import FILE, dataset_root, document_entries, shard_entries
from conceptloader.trace.locate import DocumentSeen, find_documents, locate_document
from conceptloader.trace.past import open_log, open_run
from conceptloader.trace.ranges import Member
from conceptloader.trace.run import Run

VERSION = 1


@dataclass(frozen=True, kw_only=True)
class RunStatement:
    """What a published root commits to: datasets, order and steps of a run.

    Attributes:
        run: The run.
        samples: How many it trained, over all ranks.
        value: The statement, plain JSON; its hash is the root.
        roots: Dataset of the configuration -> its root.
    """

    run: Run
    samples: int
    value: Mapping[str, Any]
    roots: Mapping[str, bytes]

    @property
    def root(self) -> str:
        """The root of the run, 64 hexadecimal digits: to be signed or published."""
        return hashlib.sha256(canonical_json(self.value).encode("ascii")).hexdigest()

    def check_published(self, published: Any, where: str) -> None:
        """Raise ConfigError unless `published`, an earlier statement of this run, says the same."""
        if not isinstance(published, dict):
            raise ConfigError(
                where,
                f"{type(published).__name__}",
                "a statement of `conceptloader receipt --out`",
                "pass --published the FILE of `conceptloader receipt --out`",
            )
        pairs = [(name, published.get(name), self.value.get(name)) for name in sorted({*published, *self.value})]
        parts = [f"{name}: published {then}, now {now}"[:300] for name, then, now in pairs if then != now]
        if parts:
            fix = "restore the run log and datasets of which the root was published, or pass another --published"
            raise ConfigError(where, "; ".join(parts), "what is published", fix)


def state_run(config: str | os.PathLike[str] | None, log: str | os.PathLike[str], samples: int) -> RunStatement:
    """The statement of a run from its run log (directory or file) and its length in samples; config: see open_run.

    Raises:
        ConfigError: For a run of which there are no receipts: the message says why.
        FormatError: A file is corrupt or not as its manifest says.
        ReadError: A file cannot be read.
        ResumeError: If a dataset was rebuilt since.
    """
    run, runs = open_run(config, log), open_log(log)
    assert run.launched is not None
    begun = [segment for segment in run.steps.segments if segment.start.consumed < samples] or run.steps.segments[:1]
    starts, spec = list(_starts(begun, samples)), runs.spec(begun[-1].start)
    launches = [run.launched(segment.start) for segment in begun]
    ends = [*(segment.start.consumed for segment in begun[1:]), samples]
    _check_orders(launches, ends)
    masks = _masks(launches, ends)
    members, roots = {}, dict[str, bytes]()
    for name in spec.members:
        member = launches[-1].member(launches[-1].blend.order.names.index(name))
        roots[member.view.name] = root = _root(member)
        masked = list(zip(*(column.tolist() for column in masks[member.view.name]), strict=True))
        members[name] = [_text(root), member.seq_len, *member.view.member.token_range, masked]
    value = {
        "format": "conceptloader-run",
        "version": VERSION,
        "seed": spec.seed,
        "block": spec.block,
        "members": members,
        "phases": [(phase.start, phase.weights) for phase in spec.phases],
        "skips": [(skip.at, skip.count) for skip in spec.skips],
        "starts": starts,
        "samples": samples,
    }
    return RunStatement(run=run, samples=samples, value=json.loads(canonical_json(value)), roots=roots)


def make_receipt(stated: RunStatement, document: str | int, dataset: str | None = None) -> dict[str, Any]:
    """The receipt of a document, plain JSON.

    Args:
        stated: The run.
        document: Its id in the input; or its number, together with its dataset.
        dataset: Name of the dataset; by default any.

    Raises:
        ConfigError: If there is no such document, or several.
        FormatError: If the documents are not those that the dataset was prepared of.
    """
    run = stated.run
    documents = find_documents(run, document, dataset, stated.samples)
    found = {(era.member(index).view.name, number): era.member(index).dataset for era, index, number in documents}
    found = {place: opened for place, opened in found.items() if place[0] in stated.roots}
    if len({(stated.roots[name], number) for name, number in found}) != 1:
        places = ", ".join(f"number {number} of {name}" for name, number in sorted(found)) or "none in these samples"
        fix = "pass --dataset and --document-number"
        raise ConfigError("document", f"{len(found)} called {document!r}: {places}", "one document", fix)
    name, number = min(found)
    opened, root = found[name, number], stated.roots[name]
    # The same data may be there by several names, such as two splits.
    names = [other for other, theirs in stated.roots.items() if theirs == root]
    seen = [one for other in names for one in locate_document(run, number, stated.samples, other)]
    seen.sort(key=lambda one: one.sample)
    return {
        "format": "conceptloader-receipt",
        "version": VERSION,
        "root": stated.root,
        "run": stated.value,
        **_proof(opened, number),
        "sightings": [[one.places[0].step, one.sample, *_positions(one, run)] for one in seen],
    }


def _check_orders(launches: Sequence[Run], ends: Sequence[int]) -> None:
    """Raise ConfigError unless one order decided all samples of the run, and receipts know it. ends: of launches."""
    last = launches[-1].blend.spec
    for launch, end in zip(launches, ends, strict=True):
        spec, views = launch.blend.spec, launch.blend.views
        unknown = {
            f"order {spec.order}": spec.order != "shuffled",
            "weights that were set while it was going": spec.live or spec.origin,
            "documents that are excluded with take: own": any(view and len(view.holes.own.at) for view in views),
        }
        if found := [name for name, there in unknown.items() if there]:
            expected = "order: shuffled, weights by the configuration alone"
            raise ConfigError("receipt", f"a run with {found[0]}", expected, "such a run has no receipts yet")
        then, now = (replace(one, quarantine={}, exclude={}) for one in (spec, last))  # see _masks
        if changed := "; ".join(map(str, compare(then, now, end))):
            raise ConfigError(
                "receipt",
                f"a past that was changed on purpose ({changed})",
                "one order of all samples",
                "such a run has no receipts yet",
            )


def _masks(launches: Sequence[Run], ends: Sequence[int]) -> dict[str, Mask]:
    """Dataset -> what was masked, from the sample on at which a launch began to mask it.

    Raises: ConfigError if a launch read again what one before had masked, which no receipt can say.
    """
    masks = dict[str, Mask]()
    for name in launches[-1].blend.datasets:
        begin, before, found = 0, NOTHING, NOTHING
        for launch, end in zip(launches, ends, strict=True):
            mask = launch.blend.excluded.get(name, Excluded()).mask
            mask = Mask(*(column[mask.at < end] for column in mask))
            held = Mask.of(mask.start[mask.at <= begin], mask.stop[mask.at <= begin], 0)
            if (held | before).ranges(0) != held.ranges(0):
                what = f"a run that from sample {begin} on read tokens of {name} that were masked before"
                raise ConfigError("receipt", what, "an `exclude` that only grows", "such a run has no receipts yet")
            found |= mask if not begin else mask._replace(at=np.maximum(mask.at, begin))
            begin, before = end, Mask.of(mask.start, mask.stop, 0)
        masks[name] = found
    return masks


def _starts(begun: Sequence[Segment], samples: int) -> Iterator[list[Any]]:
    """[step, consumed, rule of batch sizes] where the rule changes.

    Raises: ConfigError unless each sample has one step, and the run ends with one.
    """
    if begun[0].start.consumed:
        found = f"samples before {begun[0].start.consumed}, where the run log begins"
        raise ConfigError(
            "run log", found, "a start at sample 0", "pass the --run-log of all launches, the earlier ones too"
        )
    yield [begun[0].start.step, 0, begun[0].start.batch]
    for before, after in pairwise(begun):
        expected, start = before.plan.consumed_at(after.start.step), after.start
        if start.consumed != expected:
            raise ConfigError(
                "run log",
                f"step {start.step} at sample {start.consumed}",
                f"sample {expected}, to which the start before leads",
                "the log was edited, or samples were skipped or repeated: such a run has no receipt",
            )
        if start.batch != before.start.batch:
            yield [start.step, start.consumed, start.batch]
    schedule = begun[-1].plan.schedule
    low, high = schedule.range_of(schedule.step_of(samples))
    if samples != low:
        raise ConfigError(
            "--samples", str(samples), f"{low} or {high}, where a step ends", f"pass --samples {low} or {high}"
        )


def _root(member: Member) -> bytes:
    """The root of a dataset. Raises: ConfigError for those of which there are no receipts."""
    name, dataset = member.view.name, member.dataset
    if member.kind != "window" or dataset.runs is not None:
        found = f"samples that are {member.kind}s" if member.kind != "window" else "a subset"
        raise ConfigError(f"datasets.{name}", found, "windows of a whole dataset", "such a run has no receipts yet")
    try:
        return dataset_root(dataset.files)
    except ConfigError as error:
        raise error.within(f"datasets.{name}") from error


def _proof(dataset: Dataset, number: int) -> dict[str, Any]:
    """The document, its shard, and the paths from them to the root of the dataset."""
    shard = bisect_right(dataset.first_documents, number) - 1
    place, leaves, entry = number - dataset.first_documents[shard], list[bytes](), b""
    shards = shard_entries(dataset.files)
    for one in document_entries(dataset.files, shard):
        entry = one if len(leaves) == place else entry
        leaves.append(merkle.leaf(one))
    found, expected = merkle.root_of(leaves).hex(), shards[shard][24:].hex()
    if found != expected:
        where = dataset.files.path("stream.bin", shard)
        fix = f"run `conceptloader verify DATASET --full`, and restore the files that it names, or else {FILE}"
        raise FormatError(
            where, f"documents whose hash tree has the root {found}", f"the root {expected}, as {FILE} says", fix
        )
    return {
        "document": {**_numbers(entry, "first", "tokens"), "sha256": entry[16:48].hex(), "id": entry[48:].decode()},
        "path": _path(leaves, place),
        "shard": _numbers(shards[shard], "first", "tokens", "documents"),
        "shard_path": _path([merkle.leaf(one) for one in shards], shard),
    }


def _numbers(entry: bytes, *names: str) -> dict[str, int]:
    return {name: int.from_bytes(entry[8 * k : 8 * k + 8], "little") for k, name in enumerate(names)}


def _path(leaves: list[bytes], index: int) -> list[str]:
    return ["RL"[left] + _text(one) for left, one in merkle.path_of(leaves, index)]


def _text(digest: bytes) -> str:
    return base64.b64encode(digest).decode("ascii")


def _positions(one: DocumentSeen, run: Run) -> tuple[int, int]:
    """Where the document stands among the seq_len + 1 tokens of a window."""
    era = run.at(one.sample)
    seq_len = era.member(era.blend.order.names.index(one.dataset)).seq_len
    begin = one.inputs[0] if one.inputs else seq_len
    return begin, one.labels[1] + 1 if one.labels else begin + 1
