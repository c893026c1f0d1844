"""From an open configuration to the layout and the reader of its batches."""

import logging
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from conceptloader.base.hashing import derive_key
from conceptloader.base.lazy import uncollected
from conceptloader.base.version import PAGES
from conceptloader.config import Blend, ConceptOptions, LossWeight, Outputs, View
from conceptloader.errors import ConfigError
from conceptloader.format.spec.layout import DENSE, MAX_RECORD_BYTES
from conceptloader.kernels.arrays import BATCH, LOSS_WEIGHT, TRACK
from conceptloader.loader.batch.columns import column_layout
from conceptloader.loader.batch.layout import (
    F4,
    I8,
    LOSS_FIELD,
    U1,
    BatchLayout,
    FieldLayout,
    TrackLayout,
)
from conceptloader.loader.batch.reader import BatchReader

MAX_SAMPLE_BYTES = 1 << 30
RANDOM = "sample random"  # what the key of outputs.sample_seed is derived for
CLAIMED_BYTES = 1 << 20  # of a track in a sample: above, files have to prove that they are so large

logger = logging.getLogger(__name__)


@uncollected()
def open_reader(blend: Blend, dp_rank: int = 0, layout: BatchLayout | None = None) -> BatchReader:
    """A reader of the samples of `blend`.

    dp_rank: for messages. layout: of its batches, if others decide it with theirs.
    """
    layout = layout or batch_layout(blend)
    views = blend.views_of(layout.seq_len, blend.config.packing is not None)
    return BatchReader(blend.order, views, layout, dp_rank)


def batch_layout(blend: Blend) -> BatchLayout:
    """The arrays of a configuration's batches.

    Raises ConfigError if `seq_len` is missing, or a track does not fit the shapes asked for.
    """
    config = blend.config
    with config.named():
        layout = decide_layout(blend.views, config.needed_seq_len, config.outputs, config.tracks)
    return replace(layout, random_key=derive_key(config.seed, RANDOM))


def decide_layout(
    views: Sequence[View | None], seq_len: int, outputs: Outputs, tracks: Mapping[str, ConceptOptions] | None = None
) -> BatchLayout:
    """The arrays of batches of these views, with the limits of each track decided from the manifests.

    Raises ConfigError for a track that no dataset has or that does not fit its layout, for limits that a window of one
    of the datasets exceeds, unless the track says `overflow: truncate`, and for fields that are not there.
    """
    present = [view for view in views if view is not None]
    for view in present:
        _check_view(view, outputs)
    given = [(level, of) for name, of in sorted((tracks or {}).items()) for level in _levels(name, present)]
    chosen = tuple(_track_layout(level, options, present, seq_len) for level, options in given)
    # Of the arrays of a batch also those that are off: a field keeps its name when they are switched on.
    names = [*(row.name for row in BATCH), *outputs.fields, *outputs.columns]
    for track in chosen:
        names += {f"{track.name}_{row.name}" for row in TRACK}
    for name, times in Counter(names).items():
        if times > 1:
            raise ConfigError(
                "outputs",
                f"two arrays of a batch would be called {name}",
                "another name for each array",
                f"omit one of them from outputs or tracks, or rename the track or field {name!r}",
            )
    fields = [_field_layout(f, at == "labels", present) for f, at in sorted(outputs.fields.items())]
    fields += [column_layout(name, options, present, outputs) for name, options in outputs.column_options.items()]
    factors = [_factor(given, where, k, present, seq_len) for k, (where, given) in enumerate(outputs.weights.items())]
    if outputs.loss_weight == ():
        factors = [(FieldLayout(name=LOSS_WEIGHT, field="", dtype=F4, labels=True, weight=True), [])]
    fields += [field for field, _ in factors]
    weights = tuple(track for _, levels in factors for track in levels)
    return BatchLayout(seq_len=seq_len, outputs=outputs, tracks=chosen, fields=tuple(fields), weights=weights)


def _levels(name: str, views: Sequence[View]) -> list[str]:
    """The levels that a track has in any dataset; itself, if none has it."""
    levels = (level for view in views if name in view.tracks for level in view.dataset.levels[name])
    return [*dict.fromkeys(levels)] or [name]


def _field_layout(name: str, labels: bool, views: Sequence[View]) -> FieldLayout:
    where = f"outputs.fields.{name}"
    for view in views:
        if name not in view.dataset.field_names:
            known = sorted({field for view in views for field in view.dataset.field_names})
            raise ConfigError(
                where,
                f"no field {name!r} in dataset {view.name}",
                f"one of its fields: {known}",
                f"correct or omit it, or build {view.name} with --field {name}:TYPE",
            )
    types = {view.name: dict(view.dataset.manifest.layouts[0].fields)[name] for view in views}
    return FieldLayout(name=name, field=name, dtype=_one_type(where, types), labels=labels)


def _factor(
    given: LossWeight, where: str, k: int, views: Sequence[View], seq_len: int
) -> tuple[FieldLayout, list[TrackLayout]]:
    """Factor k of the loss weights, by a field or the levels of a track.

    Raises ConfigError for datasets that have neither, unless `missing` is set.
    """
    name, key = given.name, f"{LOSS_WEIGHT} {k}" if k else LOSS_WEIGHT
    fields = {v.name: dict(v.dataset.manifest.layouts[0].fields)[name] for v in views if name in v.dataset.field_names}
    tracks = {} if fields else {v.name: v.dataset.tracks[name] for v in views if name in v.tracks}
    having = fields or tracks
    lacking = sorted({view.name for view in views} - having.keys())
    if lacking and (given.missing is None or not having):
        known = sorted({field for view in views for field in (*view.dataset.field_names, *view.dataset.tracks)})
        what = "field" if fields else "track that is read" if tracks else "field and no track that is read"
        remedy = f"or set loss_weight: {{name: {name}, missing: 1}}" if having else "or correct the name"
        raise ConfigError(
            where,
            f"no {what} called {name!r} in {', '.join(lacking)} (fields and tracks: {known}), whose weights "
            "would be a guess",
            f"{name} in every dataset",
            f"build them with it, {remedy}",
        )
    types = fields or {key: str(track.parameters.get("dtype", track.codec)) for key, track in tracks.items()}
    if not {*types.values()} <= {"f2", "f4"}:
        raise ConfigError(
            where,
            f"{name!r} of type {', '.join(types.values())}",
            "f2 or f4, as field or as track of codec numpy",
            f"build it with --field {name}:f4 or --number {name}:f4; for concepts, run `conceptloader annotate DATASET "
            "ROWS --out DIR --number weight:f4` with rows that have the weights of their spans, see "
            f"{PAGES}/annotations.md#weights-of-concepts",
        )
    several = sorted(key for key, track in tracks.items() if track.max_items is not None)
    if several:
        raise ConfigError(
            where,
            f"the track {name!r} with several numbers a span in {several[0]}",
            "one number a span",
            f"build {name} in {several[0]} with one number a span (--number)",
        )
    field = FieldLayout(
        name=f"({key})" if k else key, field=name, dtype=F4, labels=True, weight=True, missing=given.missing or 0.0
    )
    if fields:
        return field, []
    if given.outside is None:
        raise ConfigError(
            where,
            f"the track {name!r} alone",
            "a weight for tokens outside its spans as well",
            f"set loss_weight: {{name: {name}, outside: 1}}",
        )
    found = {level: _track_layout(level, ConceptOptions(), views, seq_len) for level in _levels(name, views)}
    return replace(field, outside=given.outside), [
        replace(track, name=f"({key}) {level}", source=level, labels=True, factor=field.name)
        for level, track in found.items()
    ]


def _one_type(where: str, types: Mapping[str, str]) -> np.dtype[Any]:
    """Of a field or a track in the datasets that have it. Raises ConfigError if they differ."""
    first = next(iter(types))
    other = next((name for name in types if types[name] != types[first]), None)
    if other is not None:
        raise ConfigError(
            where,
            f"type {types[first]} in dataset {first}, but {types[other]} in {other}",
            "the same type in all datasets",
            f"build {other} again with the type {types[first]}: a batch has one",
        )
    return np.dtype(f"<{types[first]}")


def _check_view(view: View, outputs: Outputs) -> None:
    tokenizer = view.dataset.tokenizer
    if not outputs.loss_on_eos and (tokenizer is None or tokenizer.eos_id is None):
        raise ConfigError(
            "outputs.loss_on_eos",
            f"false, but dataset {view.name} has no eos token",
            "true",
            "omit outputs.loss_on_eos",
        )
    shards = view.dataset.manifest.shards
    if outputs.needs_documents and ((shards.documents == 0) & (shards.tokens > 0)).any():
        logger.warning(
            "dataset %s: files of it do not say where documents begin, so that position_ids: document, cu_seqlens, "
            "document_ids and mask_document_boundaries find no boundaries; adopt them with --document-end",
            view.name,
        )
    types = {dict(layout.fields).get(LOSS_FIELD) for layout in view.dataset.manifest.layouts}
    if not types <= {None, "u1"}:
        raise ConfigError(
            f"dataset {view.name}",
            f"a field {LOSS_FIELD} of type {', '.join(map(str, types))}",
            "u1",
            f"build the dataset again with --field {LOSS_FIELD}:u1, or, for weights, with --field NAME:f4 and "
            f"outputs.{LOSS_WEIGHT}: NAME",
        )
    masked = {
        "excluded documents or ranges of tokens": len(view.mask.at) or len(view.own.at),
        f"a field {LOSS_FIELD}": types != {None},
    }
    kind = view.kind
    if kind == "pack" and outputs.shared_labels:
        raise ConfigError(
            "outputs.shared_labels",
            "true with packing, where the label of a document's last token in a pack is not the next input",
            "false",
            "omit outputs.shared_labels",
        )
    masked[f"{kind}s, which are padded"] = kind != "window"
    for reason, found in masked.items():
        if found and not outputs.loss_mask:
            raise ConfigError(
                "outputs.loss_mask", f"false, but dataset {view.name} has {reason}", "true", "omit outputs.loss_mask"
            )


def _track_layout(name: str, options: ConceptOptions, views: Sequence[View], seq_len: int) -> TrackLayout:
    having = _check_track(name, options, views)
    layout = _decide_track(name, options, having, seq_len)
    size = 8 * layout.max_spans * (1 if layout.ragged else layout.max_concepts)
    if size > MAX_SAMPLE_BYTES:
        raise ConfigError(
            f"tracks.{name}",
            f"{layout.max_spans} spans of {layout.max_concepts} concepts, {size:,} bytes a sample",
            f"at most {MAX_SAMPLE_BYTES:,}",
            f"lower tracks.{name}.max_spans and max_concepts with overflow: truncate, or set layout: ragged",
        )
    if size > CLAIMED_BYTES:
        for view in having:
            _prove_sizes(view, name)
    return layout


def _check_track(name: str, options: ConceptOptions, views: Sequence[View]) -> list[View]:
    """The views that have a track. Raises ConfigError for what has no arrays of its own, or not the same in each."""
    where = f"tracks.{name}"
    having = [view for view in views if name in view.levels]
    if not having:
        known = ", ".join(sorted({track for view in views for track in view.tracks})) or "none"
        raise ConfigError(
            where,
            "a track that no dataset has",
            f"one of the tracks of the datasets: {known}",
            f"correct or omit {where}",
        )
    if options.layout == "records":
        if options.max_concepts is not None:
            raise ConfigError(
                f"{where}.max_concepts",
                "a limit with layout records, which are never truncated",
                "no limit",
                f"omit {where}.max_concepts",
            )
        for view in having:
            view.dataset.codec(name)  # now: one that nobody has given is an error
        return having
    tracks = {view.name: view.dataset.stored_tracks[name] for view in having}
    kind = having[0].dataset.stored_tracks[name].codec
    odd = next((k for k, track in tracks.items() if track.codec != kind or kind not in ("concepts", "numpy")), None)
    if odd is not None:
        raise ConfigError(
            where,
            f"codec {tracks[odd].codec} in dataset {odd}",
            "codec concepts, or codec numpy, in all datasets: arrays are made of these",
            f"set {where}.layout: records, which yields the records themselves",
        )
    if kind == "numpy":
        single = all(track.max_items is None for track in tracks.values())
        if options.layout != "padded" or (options.max_concepts is not None and single):
            raise ConfigError(
                where,
                f"layout {options.layout} and max_concepts {options.max_concepts} for a track with "
                f"{'one number' if single else 'several numbers'} a span",
                "neither: they apply to tracks of concepts",
                "omit layout and max_concepts, or set layout: records",
            )
        _one_type(where, {key: track.parameters["dtype"] for key, track in tracks.items()})
        return having
    bare = [view.name for view in having if view.dataset.files.concepts(name).scores is None]
    if 0 < len(bare) < len(tracks):
        raise ConfigError(
            where,
            f"no scores of its concepts in dataset {bare[0]}, but scores in {next(k for k in tracks if k not in bare)}",
            "scores in all datasets or in none",
            f"build {bare[0]} with --scores, or the others without",
        )
    return having


def _decide_track(name: str, options: ConceptOptions, having: Sequence[View], seq_len: int) -> TrackLayout:
    """Raises ConfigError for a limit that a window of one of the datasets may exceed."""
    track, decoded = having[0].dataset.stored_tracks[name], options.layout == "records"
    most = {"max_spans": 1, "max_concepts": MAX_RECORD_BYTES if decoded else 1}
    for view in having:
        for key, number in _claims(view, name, seq_len).items():
            limit = getattr(options, key)
            if limit is not None and number > limit and options.overflow == "error":
                raise ConfigError(
                    f"tracks.{name}.{key}",
                    f"{limit}",
                    f"at least {number}, which dataset {view.name} may need at seq_len {seq_len}",
                    f"set tracks.{name}.{key} to {number} or more, or overflow: truncate or mark",
                )
            most[key] = max(most[key], number)
    numbers = np.dtype(f"<{track.parameters['dtype']}") if track.codec == "numpy" and not decoded else None
    several = any(view.dataset.stored_tracks[name].max_items is not None for view in having)
    return TrackLayout(
        name=name,
        ragged=options.layout != "padded",
        numbers=numbers,
        vectors=numbers is not None and several,
        decoded=decoded,
        item=U1 if decoded else I8 if numbers is None else numbers,
        max_spans=options.max_spans or most["max_spans"],
        max_concepts=options.max_concepts or most["max_concepts"],
        # A limit that nobody asked for cuts nothing off: data beyond it show that a manifest says too little.
        cut_spans=options.overflow != "error" and options.max_spans is not None,
        cut_concepts=options.overflow != "error" and options.max_concepts is not None,
        mark=options.overflow == "mark",
        scored=track.codec == "concepts" and not decoded and having[0].dataset.files.concepts(name).scores is not None,
    )


def _claims(view: View, name: str, seq_len: int) -> dict[str, int]:
    """What a window's spans need as the manifest says, but no more than its files, by their sizes, can hold."""
    track, table = view.dataset.stored_tracks[name], view.dataset.manifest.shards
    dense = np.array([encoding == DENSE for encoding in table.tracks[name].encoding], bool)
    runs = sum(np.where(dense, table.tokens, table.tracks[name].entries).tolist())
    runs += 0 if view.dataset.runs is None else len(view.dataset.runs)  # each may cut a span
    cut = view.within.most(seq_len)  # as each of these may
    # Manifests know windows; of a pack, each part may be cut out of the place that has most.
    claims = {"max_spans": seq_len if view.member.packing else min(min(track.spans_in(seq_len), runs) + cut, seq_len)}
    if track.codec == "concepts" or (track.codec == "numpy" and track.max_items is not None):
        items = int(table.files[f"{name}.data"].size.max(initial=0)) // view.dataset.files.item(name)
        claims["max_concepts"] = min(track.max_items or 0, items)
    return claims


def _prove_sizes(view: View, name: str) -> None:
    """Before much memory is taken because of what files hold: the largest ones are as large as the manifest says.

    Raises: FormatError, ReadError.
    """
    for kind in (f"{name}.data", f"{name}.spans"):
        sizes = view.dataset.manifest.shards.files[kind].size
        shard = int(np.argmax(sizes))
        if sizes[shard] > 0:
            view.dataset.files.read(kind, shard, int(sizes[shard]) - 1, 1)
