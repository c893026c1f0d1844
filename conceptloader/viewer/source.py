"""What the viewer shows: the datasets of a run, or one alone; and the parameters of a request."""

import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, TypeVar

from conceptloader.base.strict import unknown
from conceptloader.blend import open_blend
from conceptloader.errors import ConfigError
from conceptloader.format.read.dataset import Dataset
from conceptloader.format.spec.codecs import is_known
from conceptloader.ingest.records.tokenizer import TextTokenizer, find_tokenizer
from conceptloader.trace.ranges import Member
from conceptloader.trace.run import Run

T = TypeVar("T")
MOST = 1 << 53  # a browser counts no further
CHECKPOINTS = ("latest_checkpointed_iteration.txt", "latest.txt")  # of Megatron-LM, of nanotron: a step


class Query:
    """The parameters of a request. Each is checked when it is read. Raises ConfigError."""

    def __init__(self, values: Mapping[str, str]) -> None:
        self._values = values

    def __contains__(self, name: str) -> bool:
        return bool(self._values.get(name))

    def text(self, name: str, default: str | None = None) -> str:
        """The parameter, or the default if it is missing or empty."""
        value = self._values.get(name) or default
        if value is None:
            raise ConfigError(name, "no value in the address of this page", "a value", "go back to the start page")
        return value

    def number(self, name: str, default: int | None = None, stop: int = MOST, what: str = "") -> int:
        """An integer in [0, stop)."""
        text = self.text(name, None if default is None else str(default))
        if not (text.isascii() and text.isdigit() and len(text) < 20 and int(text) < stop):
            raise ConfigError(
                what or name, repr(text[:40]), f"a number from 0 to {stop - 1:,}", "correct the address of the page"
            )
        return int(text)


@dataclass(frozen=True, kw_only=True)
class Source(Member):
    """A member with its name and index in the order."""

    name: str
    index: int

    @property
    def count(self) -> int:
        """Windows, or documents in mode document."""
        return self.view.count

    @property
    def readable(self) -> list[str]:
        """The tracks that are shown: those of codecs that are known and execute nothing."""
        tracks = self.dataset.tracks.items()
        return sorted(name for name, track in tracks if is_known(track.codec) and track.codec != "pickle")

    @property
    def concept_tracks(self) -> list[str]:
        """Those that hold concepts."""
        return self.dataset.concept_tracks

    def windows_of(self, document: int) -> range:
        """Those that read a token of a document, or the document itself."""
        if self.by_document:
            number = document - self.view.start
            return range(number, number + 1) if 0 <= number < self.count else range(0)
        start, stop = self.dataset.document_range(document)
        found = self.reading(start, stop) if start < stop else None
        return range(0) if found is None else range(found[0], found[1] + 1)

    def reading(self, first: int, stop: int) -> tuple[int, int] | None:
        """[first, last] of the windows that read some of tokens [first, stop); None if none does, or of documents."""
        if self.by_document:
            return None
        low = max(0, (first - self.view.start - 1) // self.seq_len)
        high = min(self.count - 1, (stop - 1 - self.view.start) // self.seq_len)
        return (low, high) if low <= high else None


@dataclass(frozen=True, kw_only=True)
class Looked:
    """run: what is looked at; alone: it is one dataset, in no run.

    samples: length of the run, if it was given. log, tokenizer: the options of these names.
    """

    title: str
    run: Run
    alone: bool = False
    samples: int | None = None
    log: str | None = None
    tokenizer: str | None = None
    _kept: dict[Any, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        if any(member is not None and member.kind == "pack" for member in self.run.members):
            raise ConfigError(
                self.title,
                "packing",
                "windows or documents: packs are not shown here",
                "look at the datasets (conceptloader viewer DATASET), or use trace, locate and exposure for the run",
            )

    @cached_property
    def sources(self) -> Mapping[str, Source]:
        """By name, those whose data are there."""
        members = zip(self.run.blend.order.names, self.run.members, strict=True)
        return {
            name: Source(view=member.view, seq_len=member.seq_len, name=name, index=index)
            for index, (name, member) in enumerate(members)
            if member is not None
        }

    def source(self, query: Query) -> Source:
        """The dataset `d`, by default the first one; alone, in windows of `s` tokens."""
        name = query.text("d", next(iter(self.sources)))
        if name not in self.sources:
            raise unknown("dataset", name, self.sources, "dataset")
        found = self.sources[name]
        if not self.alone or found.by_document or "s" not in query:
            return found
        seq_len = max(1, query.number("s", stop=found.dataset.num_tokens, what="tokens of a window"))
        return alone(found.dataset, seq_len).sources[name]

    def asked_run(self) -> Run:
        """The run. Raises ConfigError if a dataset is looked at."""
        if self.alone:
            raise ConfigError("", "a dataset alone", "a run", "start `conceptloader viewer` with a configuration")
        return self.run

    def vocabulary(self, source: Source, track: str) -> list[str] | None:
        """Names of a track's concepts; read once."""
        return self.once((source.dataset.path, track), lambda: source.dataset.vocabulary(track))

    def decoder(self, source: Source) -> TextTokenizer | None:
        """The tokenizer of a dataset, or None if it has no copy. Raises: ConfigError if another one was given."""
        return self.once(source.dataset.path, lambda: find_tokenizer(source.dataset, self.tokenizer))

    def once(self, key: Any, make: Callable[[], T]) -> T:
        """What `make` gave when it was first asked for under this key."""
        if key not in self._kept:
            self._kept[key] = make()
        kept: T = self._kept[key]
        return kept

    @cached_property
    def horizon(self) -> int:
        """Samples of the run as far as it is drawn: what was given, or twice its past and phases, an epoch at least."""
        if self.samples is not None:
            return min(MOST - 1, self.samples)
        blend, history = self.run.blend, self.run.history
        past = [one.phase.start for one in self.run.phases]
        past += [] if history is None else [history.segments[-1].start.consumed]
        longest = 0 if blend.spec.order == "sequential" else 2 * max(past, default=0)
        return min(MOST - 1, max(1, longest, sum(blend.order.sizes)))

    def position(self) -> tuple[int, int, str] | None:
        """(step, samples before it, how that is known): where the run is. None without a run log."""
        if self.run.history is None or self.log is None:
            return None
        last = self.run.history.segments[-1].start
        directory = self.log if os.path.isdir(self.log) else os.path.dirname(self.log) or "."
        for name in CHECKPOINTS:
            try:
                with open(os.path.join(directory, name), encoding="ascii") as file:
                    step = file.read(40).strip()
            except (OSError, ValueError):
                continue  # there is none, or it is no number: the run log counts
            if step.isdigit() and last.step <= int(step) < MOST:
                return int(step), self.run.history.range_of(int(step))[0], f"the last checkpoint ({name})"
        return last.step, last.consumed, f"the last start of the run ({last.time})"


def alone(dataset: Dataset, seq_len: int, tokenizer: str | None = None) -> Looked:
    """A dataset as what is looked at, in windows of `seq_len` tokens, or of all if there are fewer."""
    title = os.path.basename(dataset.path.rstrip("/")) or dataset.path
    name = title.replace("@", "-")  # which no name of a dataset has
    config = {"seq_len": max(1, min(seq_len, dataset.num_tokens - 1)), "datasets": {name: {"path": dataset.path}}}
    run = Run(blend=open_blend(config, {name: dataset}))
    return Looked(title=title, run=run, alone=True, tokenizer=tokenizer)
