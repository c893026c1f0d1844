"""Replay of a recorded run: the first step that differs from what its launches should have read, if any."""

from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass
from functools import cache, partial
from itertools import islice
from typing import Any

import numpy as np

from conceptloader.config import present
from conceptloader.loader.batch.open import decide_layout
from conceptloader.loader.batch.reader import BatchReader
from conceptloader.trace.record import Launch, Line, checksums
from conceptloader.trace.run import Run


@dataclass(frozen=True)
class Difference:
    """Where a record first differs.

    Attributes:
        what: "samples", "datasets", "tokens"; "missing" or "repeated" for a share that was not recorded once.
    """

    launch: int
    step: int
    micro_batch: int
    dp_rank: int
    what: str
    expected: Any
    recorded: Any

    def __str__(self) -> str:
        return (
            f"step {self.step} (start {self.launch} of the run), micro batch {self.micro_batch}, rank {self.dp_rank}: "
            f"{self.what}: expected {self.expected}, recorded {self.recorded}"
        )


@dataclass(frozen=True, kw_only=True)
class Report:
    """What an audit compared.

    Attributes:
        steps: [first, last + 1) of the run.
        samples: Compared, repeated ones included.
        repeated: How many were re-run after a restart, and count there.
        incomplete: Steps at the very end that not all ranks had recorded.
    """

    launches: int
    steps: tuple[int, int]
    samples: int
    repeated: int
    incomplete: list[int]
    difference: Difference | None

    def to_dict(self) -> dict[str, Any]:
        """Plain JSON."""
        return asdict(self)


def audit(run: Run, launches: Sequence[Launch]) -> Report:
    """Compare what ranks recorded with what the order of each launch, the partition and the data of `run` give.

    Every line of every start is compared, including steps that were re-run. From the first to the last step, each
    share of each step must be recorded exactly once.

    Raises:
        ConfigError: For a run with a log, if a launch of the record is not there, or one after the first is not
            recorded.
    """
    lines = [(launch.counts(line), line) for launch in launches for line in launch.lines]
    done = Counter(line.share for counts, line in lines if counts)
    differences: list[Difference] = []
    launched = [run] * len(launches) if run.launched is None else run.launched([one.start for one in launches])
    for one, launch in zip(launched, launches, strict=True):
        reader = cache(partial(_reader, one, launch))
        found = (_compare(reader, one, launch, line) for line in launch.lines)
        differences += islice(filter(None, found), 1)  # lines are in the order of their steps
    first = min(launch.start.step for launch in launches)
    last = max((step for step, *_ in done), default=first - 1)
    not_once = list(_not_once(launches, done, first, last))
    incomplete = [last] if not_once and all((one.step, one.what) == (last, "missing") for one in not_once) else []
    differences += [one for one in not_once if one.step not in incomplete]
    return Report(
        launches=len(launches),
        steps=(first, last + 1),
        samples=sum(len(line.samples) for _, line in lines),
        repeated=sum(len(line.samples) for counts, line in lines if not counts),
        incomplete=incomplete,
        difference=min(differences, key=lambda one: (one.step, one.launch), default=None),
    )


def _reader(run: Run, launch: Launch, packed: bool) -> BatchReader:
    """Reads batches at the sequence length of a start; members of other lengths had no samples in it.

    packed: whether samples are packs, of which all of a start are, or none.
    """
    seq_len = launch.start.seq_len or run.blend.config.needed_seq_len
    views = run.blend.views_of(seq_len, packed)
    return BatchReader(run.blend.order, views, decide_layout(views, seq_len, run.blend.config.outputs))


def _compare(reader: Callable[[bool], BatchReader], run: Run, launch: Launch, line: Line) -> Difference | None:
    plan = launch.start.plan
    expected = None  # the plan has no such share
    if line.step >= plan.schedule.step and line.dp_rank < plan.partition.dp_size:
        rows = plan.micro_batches(line.step, line.dp_rank)
        expected = rows[line.micro_batch].tolist() if line.micro_batch < len(rows) else None
    pairs: list[tuple[str, Any, Any]] = [("samples", expected, list(line.samples))]
    if expected and expected == list(line.samples):
        first = present(run.blend.views, run.blend.order.sample(expected[0])[0])
        batch = reader(first.kind == "pack").read(np.array(expected, np.uint64))
        pairs = [
            ("datasets", batch["dataset_id"].tolist(), list(line.datasets)),
            ("tokens", checksums(batch), list(line.checksums)),
        ]
    for what, wanted, found in pairs:
        if wanted != found:
            return Difference(launch.number, *line.share, what, wanted, found)
    return None


def _not_once(
    launches: Sequence[Launch], done: Counter[tuple[int, int, int]], first: int, last: int
) -> Iterator[Difference]:
    """Shares of the steps [first, last] that the final run trained never, or more than once."""
    for launch in launches:
        plan = launch.start.plan
        stop = last + 1 if launch.stop_step is None else min(launch.stop_step, last + 1)
        for step in range(max(first, launch.start.step), stop):
            for dp_rank in range(plan.partition.dp_size):
                for micro_batch, row in enumerate(plan.micro_batches(step, dp_rank)):
                    times = done[step, micro_batch, dp_rank]
                    if times != 1 and len(row):
                        what, samples = "repeated" if times else "missing", row.tolist()
                        share = launch.number, step, micro_batch, dp_rank
                        yield Difference(*share, what, samples, [samples] * times)
