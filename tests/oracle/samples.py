"""What is in sample t of a configuration: docs/configuration.md, packing.md, batch-keys.md, one token after the other.

Nothing of the package is used.
"""

import json
from collections.abc import Mapping
from dataclasses import dataclass
from fractions import Fraction
from functools import reduce
from math import inf
from operator import mul
from pathlib import Path
from typing import Any

import numpy as np

from tests.oracle.data import Data, Span, dtype, read
from tests.order.plain import Order, ramp, sample_random
from tests.packing.plain import pack, pieces_of


@dataclass(frozen=True)
class Part:
    """Tokens [first, end) of a dataset, from `place` of a sample on. Labels are tokens before `label_end`, of the
    document `number` in packs and documents. left_out: excluded, so that they keep their room."""

    place: int
    first: int
    end: int
    label_end: int
    left_out: bool = False


@dataclass(frozen=True)
class Member:
    """A dataset of a configuration, or its split: tokens [start, end), cut into samples."""

    data: Data
    start: int
    end: int
    seq_len: int
    bins: int | None
    overflow: str
    never: set[int]

    def documents(self):
        """Of the split: from the one that its first token belongs to, up to the one that its end belongs to."""
        found, tokens = self.data.documents, len(self.data.tokens)
        low = 0 if self.start == 0 else self.data.document_of[self.start]
        return found[low : len(found) if self.end == tokens else self.data.document_of[self.end]]

    def size(self):
        if self.bins is not None:
            whole, rest = divmod(self.end - self.start, (self.bins - 1) * self.seq_len)
            return whole * self.bins + (-(-rest // self.seq_len) + 1 if rest else 0)
        if self.data.mode == "document":
            return len(self.documents())
        return (self.end - self.start - 1) // self.seq_len

    def parts(self, window):
        if self.bins is not None:
            return [part for k, part in self.block(window // self.bins) if k == window % self.bins]
        if self.data.mode == "document":
            a, e = self.documents()[window]
            return [Part(0, a, min(e, a + self.seq_len), e)]
        first = self.start + window * self.seq_len
        return [Part(0, first, first + self.seq_len, first + self.seq_len + 1)]

    def is_never_read(self, start, end):
        return start < end and self.never.issuperset(range(start, end))

    def block(self, b):
        """(pack of the block, part) of a block of packs."""
        length = (self.bins - 1) * self.seq_len
        low, high = self.start + b * length, min(self.start + (b + 1) * length, self.end)
        if any(low < e and a < high and self.is_never_read(a, e) for a, e in self.data.shards):
            return []
        packs = self.bins if high - low == length else -(-(high - low) // self.seq_len) + 1
        documents = [(k, a, e) for k, (a, e) in enumerate(self.documents()) if a < e]
        made = pack(pieces_of(documents, low, high, self), packs, self)
        return [(one.bin, Part(one.place, one.start, one.start + one.tokens, one.end)) for one in made]


def cut(share, data):
    """The token at which a split begins or ends."""
    token = int(Fraction(repr(share)) * len(data.tokens))
    number = data.document_of[token] if token < len(data.tokens) else -1
    return data.documents[number][0] if number >= 0 else token


@dataclass(frozen=True)
class Past:
    """What came before a data stage, or another sequence length: the trainer's samples before `at`, the global ones
    before `begin`, and what was drawn of each name. first: the sequence length at which each dataset was first read."""

    at: int
    begin: int
    drawn: Mapping[str, int]
    first: Mapping[str, int]


@dataclass(frozen=True)
class Sample:
    """arrays: what a batch has of it, by name. sequences: where each begins. spans and codecs: by track."""

    arrays: dict[str, Any]
    sequences: list[int]
    spans: dict[str, list[Span]]
    codecs: dict[str, tuple[str, dict[str, str]]]


def weight_of(data, token, name, missing, outside=0):
    """`outputs.loss_weight`: of a field, or of the number of the span that holds the token."""
    if name in data.fields:
        return float(data.fields[name][token])
    if name not in data.spans:
        return missing
    found = [span.record for span in data.spans[name] if span.start <= token < span.end]
    if not found:
        return outside
    return float(np.frombuffer(found[0], dtype(data.codecs[name][1]["dtype"]))[0])


class Oracle:
    """All samples of a configuration, as plain data; paths are absolute. live: weights that were set while it ran, from
    a sample on. past: of what it goes on from, if that was another stage or sequence length."""

    def __init__(self, config, live=(), past=None):
        self.config, self.seq_len = config, config["seq_len"]
        packing = config.get("packing") or {}
        self.members = {}
        self.out = {}  # tokens that are left out from a sample on
        self.holes = {}  # those that are without their samples
        for name in sorted(config["datasets"]):
            given = config["datasets"][name]
            data = read(Path(given["path"]))
            low, high = (cut(x, data) for x in given.get("split", (0, 1)))
            overflow = packing.get("overflow", "split")
            if "split_documents" in config:
                starts = [a for a, _ in Member(data, low, high, 1, None, overflow, set()).documents()]
                low, high = ([*starts, high][round(x * len(starts))] for x in config["split_documents"])
            entries = [entry for entry in config.get("exclude", ()) if entry.get("dataset", name) == name]
            bad = {p for entry in entries if "at" not in entry for p in range(*entry["tokens"])}
            entries = [entry for entry in entries if "at" in entry]
            self.members[name] = Member(data, low, high, self.seq_len, packing.get("bins"), overflow, bad)
            taken = [(entry.get("take", "sample"), entry["at"], excluded(entry, data)) for entry in entries]
            self.out[name] = [(0, bad), *((at, tokens) for take, at, tokens in taken if take == "sample")]
            self.holes[name] = [(at, tokens) for take, at, tokens in taken if take == "own"]
        self.sizes = {name: member.size() for name, member in self.members.items()}
        self.live, self.past = list(live), past or Past(0, 0, {}, {})
        self.order = None if config.get("order") == "sequential" else self.make_order()

    def make_order(self):
        config, at, begin = self.config, self.past.at, self.past.begin
        skips = [(s["at"], s["count"]) for s in config.get("skip", ()) if s["at"] >= at]
        if at:
            skips.insert(0, (0, begin - at))  # those of the past

        def start(t):
            """The global sample at which weights begin to hold that hold from the trainer's sample t on."""
            return t + sum(count for skip, count in skips if skip <= t)

        planned, phases = self.phases([]), self.phases(self.live)
        before = [weights for t, weights in phases if t <= at][-1]
        phases = [(start(t), weights) for t, weights in phases if t > at]
        if any(t == at for t, _ in skips) and at and before != [weights for t, weights in planned if t <= at][-1]:
            phases.insert(0, (start(at), before))  # set live: a skip here passes over what was planned
            before = [weights for t, weights in planned if t <= at][-1]
        phases.insert(0, (begin, before))
        phases = [(start, {self.name(name): w for name, w in ws.items()}) for start, ws in phases]
        sizes = {self.name(name): size for name, size in self.sizes.items()}
        drawn = {name: self.past.drawn.get(name, 0) for name in sizes}
        return Order(config.get("seed", 1234), config.get("block", 64), sizes, phases, skips, drawn)

    def name(self, dataset):
        """Under which the order has a dataset at this sequence length."""
        first = self.past.first.get(dataset, self.seq_len)
        return dataset if first == self.seq_len or self.is_of_documents() else f"{dataset}@{self.seq_len}"

    def is_of_documents(self):
        """Whether samples are documents, at any sequence length."""
        return any(member.data.mode == "document" and member.bins is None for member in self.members.values())

    def starts(self):
        """The configured phases by their first sample."""
        config = self.config
        weights = {name: d["weight"] for name, d in config["datasets"].items() if "weight" in d}
        if config.get("weights") == "by_size":
            weights = self.sizes
        phases = {p["at"]: p for p in config.get("phases", ())}
        return {0: {"weights": weights or dict.fromkeys(config["datasets"], 1)}, **phases}

    def phases(self, live):
        """Of the whole run, by the trainer's samples; what is live ends a ramp."""
        temperature, found, live = (self.config.get("temperature", 1), [], sorted(live, key=lambda p: p[0]))
        starts = sorted(self.starts().items())
        for (start, phase), end in zip(starts, [*(start for start, _ in starts[1:]), inf], strict=True):
            new = phase["weights"] if temperature == 1 else tempered(phase["weights"], temperature)
            how = phase.get("ramp")
            steps = (
                [(start, new)]
                if how is None
                else ramp(start, how["samples"], how.get("shape", "linear"), found[-1][-1][1], new)
            )
            found.append([step for step in steps if step[0] < end])
        for at, weights in live:
            of = max(k for k, steps in enumerate(found) if k == 0 or starts[k][0] <= at)
            found[of] = [step for step in found[of] if step[0] < at]
            found[of].append((at, weights))
        return [step for steps in found for step in steps]

    def position(self, at):
        """The global samples that are decided before the trainer's sample `at`."""
        return self.order.global_sample(at - 1) + 1 if at else 0

    def gone(self, at):
        """The past of a stage or sequence length that begins at the trainer's sample `at`."""
        drawn = self.order.drawn_before(self.position(at))
        first = {name: self.seq_len for name in self.members if drawn[self.name(name)]}
        return Past(at, self.position(at), {**self.past.drawn, **drawn}, {**first, **self.past.first})

    def locate(self, t):
        """(dataset, epoch, window)"""
        if self.order is not None:
            name, epoch, window = self.order.locate(t)
            return name.partition("@")[0], epoch, window
        for name, size in self.sizes.items():
            if t < size:
                return name, 0, t
            t -= size
        raise IndexError

    def parts(self, t, now=None):
        """The dataset of sample t, and what it is made of where it is trained as the sample `now`, by default t."""
        now = t if now is None else now
        name, _, window = self.locate(t)
        out = [tokens for at, tokens in self.out[name] if at <= now]
        found = []
        for part in self.members[name].parts(window):
            tokens = range(part.first, min(part.label_end, part.end + 1))  # inputs and labels
            left_out = not all(one.isdisjoint(tokens) for one in out)
            found.append(Part(part.place, part.first, part.end, part.label_end, left_out))
        return name, found

    def type_of(self, column):
        return next(m.data.columns[column].dtype for m in self.members.values() if column in m.data.columns)

    def items(self, column, data, how):
        """The items of a dataset's tokens as a batch has them; none of the same type if it lacks the column."""
        having = next(m.data.columns[column] for m in self.members.values() if column in m.data.columns)
        items = data.columns[column].items if column in data.columns else having.items[:0]
        if how.get("dtype") == "stored":
            return items
        if having.dtype == "bf16":
            return (items.astype(np.uint32) << 16).view(np.float32)
        return items.astype({"u2": "i4", "u4": "i8"}.get(having.dtype, having.dtype))

    def own(self, name, now):
        """Tokens that are taken out alone of a sample that is trained at `now`."""
        return set().union(*(tokens for at, tokens in self.holes[name] if at <= now))

    def sample(self, t, now=None):
        """As it is trained at the position `now` of a run, by default t."""
        now = t if now is None else now
        name, parts = self.parts(t, now)
        member, length = self.members[name], self.seq_len
        outputs = {"position_ids": "window", "loss_mask": True, "loss_on_eos": True, **self.config.get("outputs", {})}
        data, eos, document_of = member.data, member.data.eos or 0, member.data.document_of
        packed = member.bins is not None
        arrays = {
            "input_ids": np.full(length, eos),
            "labels": np.full(length, eos),
            "loss_mask": np.zeros(length, np.float32),
            "document_ids": np.full(length, -1),
            "loss_weight": np.zeros(length, np.float32),
            "dataset_id": np.int64(list(self.members).index(name)),
            "sample_seed": np.int64(sample_random(self.config.get("seed", 1234), t)),
        }
        weight, fields = outputs.get("loss_weight"), outputs.get("fields", {})
        factors = weight if isinstance(weight, list) else [] if weight is None else [weight]
        of_dataset = self.config["datasets"][name].get("loss_weight")
        weighed = weight is not None or any("loss_weight" in one for one in self.config["datasets"].values())
        arrays |= {field: np.zeros(length, data.fields[field].dtype) for field in fields}
        columns = {
            column: {"at": "labels", "missing": None, **({"at": one} if isinstance(one, str) else one)}
            for column, one in outputs.get("columns", {}).items()
        }
        items = {column: self.items(column, data, how) for column, how in columns.items()}
        for column, how in columns.items():
            arrays[column] = np.full((length, *items[column].shape[1:]), how["missing"] or 0, items[column].dtype)
            if how.get("dtype") == "stored" and self.type_of(column) == "bf16":
                arrays[column][:] = np.float32(how["missing"]).view(np.uint32) >> 16
        spans = {track: [] for track in self.config.get("tracks", {})}
        sequences = {0}
        own = self.own(name, now)
        for part in parts:
            if packed:
                sequences |= {part.place, part.place + part.end - part.first}
            if part.left_out:
                continue
            for p in range(part.first, part.end):
                at = part.place + p - part.first
                if p not in own:
                    arrays["input_ids"][at], arrays["document_ids"][at] = data.tokens[p], document_of[p]
                if p > part.first and document_of[p] != document_of[p - 1]:
                    sequences.add(at)
                has_label = p + 1 < part.label_end
                for field, side in fields.items():
                    if (side == "inputs" or has_label) and p + (side == "labels") not in own:
                        arrays[field][at] = data.fields[field][p + (side == "labels")]
                for column, how in columns.items():
                    token = p + (how["at"] == "labels")
                    known = column in data.columns and (how["at"] == "inputs" or has_label) and token not in own
                    if known and data.columns[column].known[token]:
                        arrays[column][at] = items[column][token]
                if not has_label or p + 1 in own:
                    continue
                arrays["labels"][at] = data.tokens[p + 1]
                arrays["loss_mask"][at] = (
                    p not in own
                    and ("loss_mask" not in data.fields or data.fields["loss_mask"][p + 1] != 0)
                    and (outputs["loss_on_eos"] or data.tokens[p + 1] != data.eos)
                    and (not outputs.get("mask_document_boundaries") or document_of[p] == document_of[p + 1])
                )
                product = [np.float32(weight_of(data, p + 1, **factor)) for factor in factors]
                product += [] if of_dataset is None else [np.float32(of_dataset)]
                arrays["loss_weight"][at] = reduce(mul, product, np.float32(1))
            for track, found in spans.items():
                inside = (s for s in data.spans.get(track, ()) if s.start < part.end and s.end > part.first)
                for s in inside:
                    kept = [p for p in range(max(s.start, part.first), min(s.end, part.end)) if p not in own]
                    firsts = [p for p in kept if p - 1 not in kept]
                    lasts = [p + 1 for p in kept if p + 1 not in kept]
                    shift = part.place - part.first
                    found += [s.cut(a, b, shift) for a, b in zip(firsts, lasts, strict=True)]
        if outputs.get("ignore_index"):
            arrays["labels"][arrays["loss_mask"] == 0] = outputs["ignore_index"]
        borders = sorted(sequences - {length})
        starts = borders if packed or outputs["position_ids"] == "document" else [0]
        arrays["position_ids"] = np.concatenate([np.arange(n) for n in np.diff([*starts, length])])
        arrays["tokens"] = np.append(arrays["input_ids"], arrays["labels"][-1])
        wanted = {"input_ids", "labels", "dataset_id", *fields, *columns}
        wanted |= {name for name in ("loss_mask", "document_ids", "sample_seed") if outputs.get(name)}
        wanted |= {"loss_weight"} if weighed else set()
        wanted |= {"position_ids"} if outputs["position_ids"] != "off" else set()
        wanted |= {"tokens"} if outputs.get("shared_labels") else set()
        in_order = {track: sorted(found, key=lambda s: s.start) for track, found in spans.items()}
        return Sample({name: arrays[name] for name in wanted}, borders, in_order, data.codecs)


def excluded(entry, data):
    """Tokens of a dataset that an entry of `exclude` takes out: documents, or ranges."""
    documents = zip(data.documents, data.ids, strict=True)
    found = {p for (a, e), id in documents if id in entry.get("ids", ()) for p in range(a, e)}
    found |= set(range(*entry.get("tokens", (0, 0))))
    lines = Path(entry["token_file"]).read_text().splitlines() if "token_file" in entry else []
    return found | {p for line in lines if line[0] != "#" for p in range(*map(int, line.split()))}


def carrying(data, track, concept):
    """Tokens in spans of a concept."""
    spans = (s for s in data.spans.get(track, ()) if concept in meaning(data.codecs[track], s.record)[0])
    return {p for s in spans for p in range(s.start, s.end)}


def tempered(weights, temperature):
    most = max(weights.values())
    return {name: float(f"{(weight / most) ** (1 / temperature):.12g}") for name, weight in weights.items()}


def meaning(codec, record):
    """(concept ids, their scores) of a record, or its numbers, or its value."""
    name, parameters = codec
    if name == "json":
        return [json.loads(record)], None
    if name == "numpy":
        return np.frombuffer(record, dtype(parameters["dtype"])).tolist(), None
    ids, scores = dtype(parameters.get("ids", "u4")), parameters.get("scores")
    if scores is None:
        return np.frombuffer(record, ids).tolist(), None
    n = len(record) // (ids.itemsize + dtype(scores).itemsize)
    return (
        np.frombuffer(record, ids, n).tolist(),
        np.frombuffer(record, dtype(scores), n, n * ids.itemsize).astype(np.float32).tolist(),
    )
