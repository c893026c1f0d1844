"""A small random run, and what is in it by walking: token by token, with the brute-force reading of tests/oracle."""

import json
import operator
from pathlib import Path
from typing import NamedTuple

from hypothesis import strategies as st

from conceptloader.config import open_blend
from conceptloader.order.partition import Place
from conceptloader.order.progress.runlog import History, RunStart
from conceptloader.trace import Run
from tests.oracle.data import read
from tests.oracle.samples import Oracle, meaning

MOST = 100  # samples
OPERATORS = {
    "=": operator.eq, "!=": operator.ne, "<": operator.lt, "<=": operator.le, ">": operator.gt, ">=": operator.ge,
}  # fmt: skip


class Held(NamedTuple):
    """Tokens [start, end) of a document, -1 for none, in a sample; inputs, labels: their positions [a, b), or None."""

    document: int
    start: int
    end: int
    inputs: tuple[int, int] | None
    labels: tuple[int, int] | None


class Walk:
    """A run of `count` samples. steps: those that it has; places: sample -> where it is trained."""

    def __init__(self, folder, config, starts):
        self.oracle, self.config = Oracle(config), config
        self.run = Run(blend=open_blend(config), history=History(starts))
        self.data = {name: read(Path(entry["path"])) for name, entry in config["datasets"].items()}
        total = sum(self.oracle.sizes.values())
        self.count = min(MOST, total) if config["order"] == "sequential" else MOST
        self.places = {}
        step, ranges = 0, []
        while step <= starts[-1].step or ranges[-1][0] < self.count:
            ranges.append(self.run.steps.range_of(step))
            self._walk_step(step)
            step += 1
        self.steps = next((k for k, (_, stop) in enumerate(ranges) if stop > self.count), step)
        self.held = [list(self._held(t)) for t in range(self.count)]

    def _walk_step(self, step):
        plan = self.run.steps.launch(step).plan
        for dp_rank in range(plan.partition.dp_size):
            for micro_batch, row in enumerate(plan.micro_batches(step, dp_rank)):
                for slot, sample in enumerate(row.tolist()):
                    self.places.setdefault(sample, []).append(Place(step, micro_batch, dp_rank, slot))

    def name(self, sample):
        return self.oracle.locate(sample)[0]

    def source_of(self, name, document):
        """The number that a document of a dataset has in its source; of no view, its own."""
        path, data = Path(self.config["datasets"][name]["path"]), self.data[name]
        if not data.runs:
            return document
        source = json.loads((path / "manifest.json").read_text())["source"]["path"]
        return int(read(path / source).document_of[data.runs[document][0]])

    def _held(self, sample):
        name, parts = self.oracle.parts(sample)
        of, own = self.data[name].document_of, self.oracle.own(name, sample)
        for part in parts:
            stop = first = part.first
            last = min(part.label_end, part.end + 1) if not part.left_out else first
            while stop < last:
                start = stop
                while stop < last and of[stop] == of[start] and (stop in own) == (start in own):
                    stop += 1
                if start in own:
                    continue
                inputs = start - first, min(stop, part.end) - first
                labels = max(start - 1, first) - first, stop - 1 - first
                moved = [(a + part.place, b + part.place) if a < b else None for a, b in (inputs, labels)]
                yield Held(int(of[start]), start, stop, *moved)

    def seen_tokens(self, sample):
        """(token of the dataset, whether it is an input, whether it is a label) of all that a sample reads."""
        name, parts = self.oracle.parts(sample)
        own = self.oracle.own(name, sample)
        for part in parts:
            tokens = range(part.first, min(part.label_end, part.end + 1)) if not part.left_out else ()
            for token in (token for token in tokens if token not in own):
                yield token, token < part.end, token > part.first


def concepts_of(data, track):
    """The concepts of each token, with their scores."""
    found = [{} for _ in data.tokens]
    for span in data.spans.get(track, ()):
        ids, scores = meaning(data.codecs[track], span.record)
        for token in range(span.start, span.end):
            found[token] = dict(zip(ids, scores or [1.0] * len(ids), strict=True))
    return found


@st.composite
def histories(draw, seq_len):
    """Starts of a run: on other ranks, with other batches, back a few steps, with samples done again or passed over."""
    starts, step, consumed = [], 0, 0
    for _ in range(draw(st.integers(1, 3))):
        size, ranks = draw(st.integers(1, 3)), draw(st.integers(1, 3))
        batch = size * ranks * draw(st.integers(1, 2))
        scheme = draw(st.sampled_from(["strided", "contiguous"]))
        starts.append(
            RunStart(
                step=step,
                consumed=consumed,
                batch=[[0, batch]],
                micro_batch_size=size,
                dp_size=ranks,
                scheme=scheme,
                seq_len=seq_len,
                spec="0" * 32,
            )
        )
        steps = draw(st.integers(1, 6))
        step, consumed = step + steps, max(0, consumed + steps * batch + draw(st.integers(-4, 4)))
    return starts


@st.composite
def excluding_at_once(draw, config):
    """Also a document from a sample on that holds it: it is not seen there any more."""
    oracle = Oracle(config)
    t = draw(st.integers(0, min(MOST, sum(oracle.sizes.values())) - 1))
    name, parts = oracle.parts(t)
    data = oracle.members[name].data
    numbers = sorted({int(data.document_of[part.first]) for part in parts if part.first < part.end})
    ids = [data.ids[number] for number in numbers if number >= 0 and data.ids[number]]
    take = {"take": draw(st.sampled_from(["sample", "own"]))}
    entries = [{"at": t, "dataset": name, "ids": [draw(st.sampled_from(ids))], **take}] if ids else []
    return {**config, "exclude": config["exclude"] + entries}


def carries(k):
    """A test of a concept, and whether it holds of a token that carries these, by track."""
    return f"'concept-{k}' in concepts", lambda ids: k in ids["concepts"]


def scores(k, op, score):
    def holds(ids):
        return bool(OPERATORS[op](ids["scored"][k], score)) if k in ids["scored"] else None

    return f"score(scored, 'concept-{k}') {op} {score}", holds


def no(one):
    """Of tests as of `carries`, whatever they are given."""

    def holds(*given):
        found = one[1](*given)
        return None if found is None else not found

    return f"not ({one[0]})", holds


def join(one, word, two):
    def holds(*given):
        found, decides = (one[1](*given), two[1](*given)), word == "or"
        return decides if decides in found else None if None in found else not decides

    return f"({one[0]} {word} {two[0]})", holds


CONCEPTS = st.builds(carries, st.integers(0, 8)) | st.builds(
    scores, st.integers(0, 8), st.sampled_from(sorted(OPERATORS)), st.sampled_from([0, 0.25, 0.5])
)
EXPRESSIONS = st.recursive(
    CONCEPTS, lambda inner: inner.map(no) | st.builds(join, inner, st.sampled_from(["and", "or"]), inner), max_leaves=5
)
