"""A batch as text, with its spans and the names of their concepts."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple, Protocol

import numpy as np

from conceptloader.base.terminal import printable
from conceptloader.config import Blend, View
from conceptloader.errors import ConfigError
from conceptloader.loader.batch.layout import BatchLayout
from conceptloader.loader.batch.open import batch_layout
from conceptloader.trace.viewer.windows import Reader


class HasBlend(Protocol):
    """A Loader, a SampleDataset."""

    @property
    def blend(self) -> Blend: ...


class DecodedSpan(NamedTuple):
    """A span of a sample, as text.

    Attributes:
        start: First input of the sample that is in the span.
        end: The input after the last one.
        text: Of these inputs.
        concepts: Names, or ids where the dataset has no names; of other tracks the span's number or record.
    """

    start: int
    end: int
    text: str
    concepts: tuple[Any, ...]


@dataclass(frozen=True)
class DecodedSample:
    """The inputs of one sample as text.

    Attributes:
        dataset: Its name.
        sample: The trainer's index, None if the batch has none.
        text: Of its inputs.
        spans: By track, those of which it holds tokens.
    """

    dataset: str
    sample: int | None
    text: str
    spans: Mapping[str, list[DecodedSpan]]

    def __str__(self) -> str:
        lines = [f"sample {'?' if self.sample is None else self.sample} of {self.dataset}: {printable(self.text)}"]
        for track, spans in self.spans.items():
            lines += [
                f"  {track} [{span.start}, {span.end}) {printable(span.text)!r}: {', '.join(map(str, span.concepts))}"
                for span in spans
            ]
        return "\n".join(lines)


def decode(batch: Mapping[str, Any], source: HasBlend | Blend, tokenizer: str | None = None) -> list[DecodedSample]:
    """The samples of a batch, or the one sample, that `source` (a Loader, a SampleDataset, a Blend) returned.

    Args:
        batch: A batch of the loader.
        source: What returned it.
        tokenizer: As `--tokenizer` of the command; by default the copy that the datasets have.

    Returns:
        Texts and spans, a sample each.

    Raises:
        ConfigError: For a batch that does not come from `source`, if no tokenizer is known, or if the batch does not
            say which of several datasets that differ a sample is of (outputs.dataset_id).
    """
    blend = source if isinstance(source, Blend) else source.blend
    views = {view.dataset_id: view for view in blend.views if view is not None}
    layout = batch_layout(blend)
    known: dict[int, _Words] = {}
    decoded = []
    for sample in _samples(batch, layout):
        view = _view(sample, views)
        if view.dataset_id not in known:
            known[view.dataset_id] = _Words(view, layout, tokenizer)
        decoded.append(known[view.dataset_id].decode(sample))
    return decoded


def _samples(batch: Mapping[str, Any], layout: BatchLayout) -> Iterator[Mapping[str, Any]]:
    """Arrays of each sample by name, of ragged tracks its own values and offsets."""
    wanted = {"input_ids", "dataset_id", "sample_index"}
    wanted |= {f"{t.name}_{part}" for t in layout.tracks for part in ("num_spans", "spans", "offsets", "values")}
    wanted |= {f"{t.name}_{part}" for t in layout.tracks for part in ("ids", "counts", "records")}
    found: dict[str, Any] = {name: value for name, value in batch.items() if name in wanted}
    for name, value in found.items():
        if not name.endswith("_records"):
            found[name] = np.asarray(value.detach().cpu() if hasattr(value, "detach") else value)
    missing = {"input_ids", *(f"{track.name}_spans" for track in layout.tracks)} - found.keys()
    if missing:
        raise ConfigError(
            "decode",
            f"no {min(missing)} in the batch",
            "a batch that this loader returned",
            "pass the loader that made it",
        )
    if found["input_ids"].ndim == 1:
        yield found
    else:
        yield from (layout.sample(found, k) for k in range(len(found["input_ids"])))


def _view(sample: Mapping[str, Any], views: Mapping[int, View]) -> View:
    if "dataset_id" in sample:
        number = int(sample["dataset_id"])
        if number not in views:
            raise ConfigError(
                "decode",
                f"dataset_id {number}",
                "the id of a dataset of the configuration",
                "pass the loader that made the batch",
            )
        return views[number]
    facts = {(view.dataset.tokenizer, *(t.vocabulary for t in view.dataset.tracks.values())) for view in views.values()}
    if len(facts) > 1:
        raise ConfigError(
            "outputs.dataset_id", "false, and the datasets have different names", "true", "omit outputs.dataset_id"
        )
    return next(iter(views.values()))


class _Words:
    """Tokenizer and names of the concepts of one dataset."""

    def __init__(self, view: View, layout: BatchLayout, tokenizer: str | None) -> None:
        reader, dataset = Reader(view.dataset, tokenizer), view.dataset
        if reader.tokenizer is None:
            raise ConfigError(
                "decode",
                f"no tokenizer next to {dataset.path}, of dataset {view.name}",
                "the tokenizer that it was built with",
                "pass it: decode(batch, loader, 'tokenizer.json')",
            )
        self._name, self._tokenizer = view.name, reader.tokenizer
        known = {track.name for track in layout.tracks}
        self._levels = {track: [one for one in levels if one in known] for track, levels in dataset.levels.items()}
        self._names = {track: reader.names.get(track) for track, levels in self._levels.items() if levels}

    def decode(self, sample: Mapping[str, Any]) -> DecodedSample:
        ids = sample["input_ids"].tolist()
        index = int(sample["sample_index"]) if "sample_index" in sample else None
        spans = {
            track: [span for level in self._levels[track] for span in self._spans(sample, level, names, ids)]
            for track, names in self._names.items()
        }
        return DecodedSample(self._name, index, self._tokenizer.decode(ids), spans)

    def _spans(
        self, sample: Mapping[str, Any], track: str, names: list[str] | None, ids: list[int]
    ) -> Iterator[DecodedSpan]:
        for k in range(int(sample[f"{track}_num_spans"])):
            start, end = sample[f"{track}_spans"][k].tolist()
            if f"{track}_records" in sample:
                concepts = [sample[f"{track}_records"][k]]
            elif f"{track}_offsets" in sample:
                first, last = sample[f"{track}_offsets"][k : k + 2]
                concepts = sample[f"{track}_values"][first:last].tolist()
            elif f"{track}_values" in sample:
                values, counts = sample[f"{track}_values"][k], sample.get(f"{track}_counts")
                concepts = [values.item()] if counts is None else values[: counts[k]].tolist()
            else:
                concepts = sample[f"{track}_ids"][k, : sample[f"{track}_counts"][k]].tolist()
            shown = tuple(names[c] if names and f"{track}_records" not in sample else c for c in concepts)
            yield DecodedSpan(start, end, self._tokenizer.decode(ids[start:end]), shown)
