"""Which samples of a run hold any of many documents, by the inverse of the order: what is to be replayed without them.

docs/removal.md says what a run that is replayed from before the first of them still has of them.
"""

import os
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any, NamedTuple

import numpy as np

from conceptloader.blend import load_config, open_blend
from conceptloader.format.read.bulk import equal_pairs, pairs
from conceptloader.format.spec.columns import Ints
from conceptloader.order.progress.resume import splice
from conceptloader.trace.past import defaults_of
from conceptloader.trace.ranges import document_ranges, ranges_of, samples_holding
from conceptloader.trace.run import Run


class Sightings(NamedTuple):
    """Each time that a sample holds some of a document, also only as a label, by sample.

    Fields: the sample, the position of its dataset in Run.datasets, the document's number there.
    """

    sample: Ints
    dataset: Ints
    document: Ints


def documents_with(run: Run, ids: Sequence[str]) -> tuple[dict[str, Ints], list[str]]:
    """(dataset, as in Run.datasets -> numbers of its documents with one of these ids, ids that none has)."""
    known, numbers = set[str](), dict[str, Ints]()
    for name, dataset in run.datasets.items():
        found = dataset.find_documents(ids)
        numbers[name] = np.unique(np.array([number for having in found.values() for number in having], np.int64))
        known |= {one for one, having in found.items() if having}
    return numbers, [one for one in dict.fromkeys(ids) if one not in known]


def find_sightings(run: Run, documents: Mapping[str, Ints], num_samples: int) -> Sightings:
    """Where the first `num_samples` samples of a run hold any of some documents, given by dataset and numbers.

    Raises:
        ConfigError: If the run has read a dataset whose data are not there, which may have had them.
    """
    names = list(run.datasets)
    parts = [np.zeros((3, 0), np.int64)]
    for era in run.eras(0, num_samples):
        counts = era.blend.order.counts
        drawn = zip(counts(min(num_samples, era.stop)), counts(era.first), strict=True)
        for index in [k for k, (after, before) in enumerate(drawn) if after > before]:
            name = run.data_name(era, era.member(index).view.name)
            sample, document = _sightings(era, index, documents[name], num_samples)
            parts.append(np.stack([sample, np.full(len(sample), names.index(name)), document]))
    # Once each: a pack may hold two parts of a document, and a sample may have been trained again.
    return Sightings(*np.unique(np.concatenate(parts, 1), axis=1))


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


def _sightings(run: Run, index: int, numbers: Ints, num_samples: int) -> tuple[Ints, Ints]:
    """(sample, document) of samples of a member that hold any of some documents."""
    member = run.member(index)
    start, stop = document_ranges(member.dataset, numbers)
    numbers, start, stop = (column[start < stop] for column in (numbers, start, stop))
    windows = samples_holding(member, numbers, start, stop)
    read = ranges_of(member, windows)
    part, held = pairs(np.searchsorted(stop, read.start, side="right"), np.searchsorted(start, read.stop))
    which, _, samples = run.draws(index, windows, num_samples)
    pair, draw = equal_pairs(read.row[part], which)
    trained = samples[draw] < read.since[part[pair]]
    return samples[draw[trained]], numbers[held[pair[trained]]]
