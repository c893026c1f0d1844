"""Replay of a recorded run: the first step that differs from what its launches should have read, if any."""

from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass
from functools import cache, partial
from itertools import islice
from typing import Any

import numpy as np

from conceptloader.batch.digest import sha256_of
from conceptloader.batch.open import decide_layout
from conceptloader.batch.reader import BatchReader
from conceptloader.batch_log.record import SHA256
from conceptloader.blend import Outputs, present
from conceptloader.trace.record import Launch, Line, checksums
from conceptloader.trace.run import Run


@dataclass(frozen=True)
class Difference:
    """Where a record first differs.

    Attributes:
        what: "samples", "datasets", "tokens", "sha256"; "missing" or "repeated" for a share that was not recorded once.
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
        by_tokens: How many were compared by input_ids and labels alone, as their lines have no SHA-256.
        incomplete: Steps at the very end that not all ranks had recorded.
    """

    launches: int
    steps: tuple[int, int]
    samples: int
    repeated: int
    by_tokens: int
    incomplete: list[int]
    difference: Difference | None

    def to_dict(self) -> dict[str, Any]:
        """Plain JSON."""
        return asdict(self)


def audit(run: Run, launches: Sequence[Launch], digests: bool = False) -> Report:
    """Compare what ranks recorded with what the order of each launch, the partition and the data of `run` give.

    Every line of every start is compared, including steps that were re-run. From the first to the last step, each
    share of each step must be recorded exactly once. digests: every line must have a SHA-256, as `loader.batch_log`
    writes it; those of other records are compared where they are.
    """
    lines = [(launch.counts(line), line) for launch in launches for line in launch.lines]
    done = Counter(line.share for counts, line in lines if counts)
    differences: list[Difference] = []
    if run.check_recorded is not None:
        run.check_recorded([launch.start for launch in launches])
    for launch in launches:
        launched = run if run.launched is None else run.launched(launch.start)
        reader = cache(partial(_reader, launched, launch))
        found = (_compare(reader, launched, launch, line, digests) for line in launch.lines)
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
        by_tokens=0 if digests else sum(len(line.samples) for _, line in lines if SHA256 not in line.more),
        incomplete=incomplete,
        difference=min(differences, key=lambda one: (one.step, one.launch), default=None),
    )


def _reader(run: Run, launch: Launch, ignore_index: int | None, packed: bool, whole: bool) -> BatchReader:
    """Reads tokens at the sequence length of a start; members of other lengths had no samples in it.

    ignore_index: of the labels, where the configuration masks their loss. packed: whether samples are packs, of which
    all of a start are, or none. whole: as the configuration says, loss masks too.
    """
    seq_len = launch.start.seq_len or run.blend.config.needed_seq_len
    views = run.blend.views_of(seq_len, packed)
    masks = run.blend.config.outputs
    outputs = Outputs(
        position_ids="off",
        ignore_index=ignore_index,
        mask_document_boundaries=ignore_index is not None and masks.mask_document_boundaries,
        loss_on_eos=ignore_index is None or masks.loss_on_eos,
    )
    layout = decide_layout(views, seq_len, masks if whole else outputs)
    return BatchReader(run.blend.order, views, layout)


def _compare(
    reader: Callable[[int | None, bool, bool], BatchReader], run: Run, launch: Launch, line: Line, digests: bool
) -> Difference | None:
    plan = launch.start.plan
    expected = None  # the plan has no such share
    if line.step >= plan.schedule.step and line.dp_rank < plan.partition.dp_size:
        rows = plan.micro_batches(line.step, line.dp_rank)
        expected = rows[line.micro_batch].tolist() if line.micro_batch < len(rows) else None
    pairs: list[tuple[str, Any, Any]] = [("samples", expected, list(line.samples))]
    if expected and expected == list(line.samples):
        first = present(run.blend.views, run.blend.order.sample(expected[0])[0])
        whole = digests or SHA256 in line.more
        key = None if whole else line.ignore_index, first.kind == "pack", whole
        batch = reader(*key).read(np.array(expected, np.uint64))
        pairs = [
            ("datasets", batch["dataset_id"].tolist(), list(line.datasets)),
            ("tokens", checksums(batch["input_ids"], batch["labels"]), list(line.checksums)),
            *([(SHA256, sha256_of(batch), line.more.get(SHA256))] if whole else []),
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
