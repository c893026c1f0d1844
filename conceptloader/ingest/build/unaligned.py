"""Spans that got no token: counted by track, shown by example, refused above a limit."""

from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, field
from typing import Any

from conceptloader.errors import FormatError, InputError
from conceptloader.format.spec.columns import Ints
from conceptloader.format.write.build import Build
from conceptloader.ingest.align.units import UNITS
from conceptloader.ingest.records.batch import RowBatch

ANSWERS = "answers of the assistant"  # in place of a track: of conversations, those of which no end is trained
NOTE, SPELLED = "spans", "special_tokens"  # the notes of a shard's record that hold the counts, where there are any
_EXAMPLES, _TEXT = 3, 60


@dataclass
class TrackLoss:
    """Of one track: the spans that were given, how many of them got no token, and the first few of these."""

    spans: int = 0
    lost: int = 0
    examples: list[dict[str, Any]] = field(default_factory=list)

    def add(self, other: "TrackLoss") -> None:
        self.spans += other.spans
        self.lost += other.lost
        self.examples += other.examples[: _EXAMPLES - len(self.examples)]

    def said(self, track: str) -> str:
        shown = ", ".join(
            f"[{one['start']}, {one['end']}) of {one['document']}"
            + (f" ({one['text']!r})" if one["text"] is not None else "")
            for one in self.examples
        )
        what = ("answers", "have no trained end") if track == ANSWERS else ("spans", "got no token")
        return f"{self.lost:,} of {self.spans:,} {what[0]} ({self.lost / self.spans:.2%}) {what[1]}, such as {shown}"


class Losses(dict[str, TrackLoss]):
    """Losses by track."""

    def note(
        self, batch: RowBatch, lost: Mapping[str, Ints], name: Callable[[int], str], unit: str | None = None
    ) -> None:
        """Count a batch.

        lost: indices into the spans of each track; name: what to call the document of a row; unit: of the spans.
        """
        for track, which in lost.items():
            spans = batch.spans[track]
            examples = []
            for i in which[:_EXAMPLES].tolist():
                row, start, end = int(spans.row[i]), int(spans.start[i]), int(spans.end[i])
                text = None
                if batch.texts is not None and unit != "token":
                    text = UNITS[unit or "character"].cut(batch.texts[row], start, end)
                examples.append({"document": name(row), "start": start, "end": end, "text": text and text[:_TEXT]})
            self.add({track: TrackLoss(len(spans.row), len(which), examples)})

    def add(self, other: Mapping[str, TrackLoss]) -> None:
        for track, loss in other.items():
            self.setdefault(track, TrackLoss()).add(loss)

    @property
    def lost(self) -> int:
        return sum(loss.lost for loss in self.values())

    def to_json(self) -> dict[str, Any]:
        return {track: asdict(loss) for track, loss in self.items()}

    def lines(self, limit: float = 1) -> list[str]:
        """A sentence for each track that lost something. limit: the part above which it will be refused."""
        fate = {True: f"above {limit:.2%} (max-unaligned-spans) a build fails", False: "they were skipped"}
        lost = [(track, loss) for track, loss in self.items() if loss.lost]
        return [f"{track}: {loss.said(track)}; {fate[loss.lost > limit * loss.spans]}" for track, loss in lost]

    def check(self, limit: float, where: str, remedy: str) -> None:
        """Raises: InputError for a track that lost more than the part `limit` of its spans."""
        for track, loss in self.items():
            if loss.lost > limit * loss.spans:
                advice = "check that the offsets are [start, end) in characters of these very texts"
                if track == ANSWERS:
                    advice = "end the assistant's turns with a special token in the template, within {% generation %} "
                    advice += "if there is one, such as {{ message.content }}{{ eos_token }} (--chat-template FILE)"
                fix = f"{advice}, or allow it (--max-unaligned-spans); {remedy}"
                raise InputError(f"{where}: track {track!r}", loss.said(track), f"at most {limit:.2%}", fix)


def read_losses(build: Build) -> Losses:
    """What the finished shards of a build lost. Raises: FormatError for a record of a shard that is corrupt."""
    losses = Losses()
    _read_notes(build, NOTE, lambda note: losses.add({track: TrackLoss(**loss) for track, loss in note.items()}))
    return losses


def read_spelled(build: Build) -> dict[str, int]:
    """How often text of the finished shards spells each special token. Raises: FormatError, as `read_losses` does."""
    found = Counter[str]()
    _read_notes(build, SPELLED, lambda note: found.update(+Counter[str](note)))
    return dict(found)


def _read_notes(build: Build, name: str, add: Callable[[Any], None]) -> None:
    for shard in range(build.num_shards):
        report = build.report(shard)
        try:
            add(report.notes.get(name, {}) if report else {})
        except (TypeError, AttributeError) as error:
            raise FormatError(
                f"{build.path}: shard {shard}",
                f"a .shard.json that is not what a writer says ({error!r})",
                "counts of spans and special tokens",
                f"remove .shard.json of shard {shard}, and run the same build again",
            ) from error


def check_losses(build: Build, limit: float) -> Losses:
    """What the shards of a build lost. Raises: InputError for a track that lost more than the part `limit`."""
    losses = read_losses(build)
    losses.check(limit, build.path, "finished shards are kept: the same command resumes from them")
    return losses
