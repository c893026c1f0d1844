"""Building a dataset from raw records: plan, worker processes, manifest."""

import contextlib
import logging
import os
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

from conceptloader.base.strict import Count, convert
from conceptloader.base.terminal import counted
from conceptloader.base.workers import run_tasks
from conceptloader.errors import ConceptloaderError, ConfigError, InputError, ReadError
from conceptloader.format.read.kept import keep_tokenizer
from conceptloader.format.spec import layout as fmt
from conceptloader.format.spec.manifest import Tokenizer, level_names
from conceptloader.format.spec.options import BuildOptions, TrackOptions
from conceptloader.format.write.build import (
    Build,
    OtherBuild,
    create_writer,
    discard_unfinished,
)
from conceptloader.format.write.finalize import finalize
from conceptloader.ingest.build.complete import Summary, describe_complete
from conceptloader.ingest.build.options import Options
from conceptloader.ingest.build.plan import Plan, default_shard_bytes, piece_bytes, plan_shards
from conceptloader.ingest.build.shard import Progress, ShardJob, write_shard
from conceptloader.ingest.build.unaligned import check_losses, read_spelled
from conceptloader.ingest.records.batch import BadRecord
from conceptloader.ingest.records.columns import METADATA_TRACK
from conceptloader.ingest.records.documents import number_type
from conceptloader.ingest.records.inputs import Source, check_since_start
from conceptloader.ingest.records.special_tokens import TEXT
from conceptloader.ingest.records.tokenizer import unnamed
from conceptloader.storage.lock import build_lock

log = logging.getLogger(__name__)

_TELLING = 10_000  # spans after which a part that is lost means something


Watch = Callable[[Progress], None]


def build_dataset(
    sources: Sequence[Source],
    out: str | os.PathLike[str],
    options: Options,
    *,
    workers: int = 1,
    task: tuple[int, int] | None = None,
    on_bad: Callable[[str, str, str], None] | None = None,
    watch: Callable[[int, int], Watch] | None = None,
) -> Summary:
    """Build a dataset, or resume a build that was interrupted; finished shards are kept.

    The bytes of the dataset depend on the inputs and options, not on `workers`, tasks or interruptions. task: (number,
    tasks): write only the shards of this one of several tasks, which may run on other machines, and no manifest; the
    summary is of what it did. A call without it completes the dataset.
    on_bad: called with (file, place, problem) for records that cannot be ingested, which are then skipped; without it
    they are errors. watch: called with (stored input bytes in all, those of kept shards); what it returns is called
    with each Progress.

    Raises: InputError naming file and line for bad input, or a file that changed meanwhile, after all other shards are
    finished, or naming examples if more than `options.max_unaligned_spans` of a track's spans contain no token;
    ConfigError for options that contradict each other or the build in `out`, or if another one runs there.
    """
    began = time.monotonic()
    task = convert(task, tuple[int, Count] | None, "task")
    if task is not None and not 0 <= task[0] < task[1]:
        fix = f"count tasks from 0: task=(0, {task[1]}) is the first"
        raise ConfigError("task", f"{task[0]} of {task[1]}", f"a number from 0 to {task[1] - 1}", fix)
    options = options.resolved(sources, strict=on_bad is None)
    path = os.path.abspath(out)
    plan = plan_shards(sources, options.shard_input_bytes or default_shard_bytes(sources))
    if not plan:
        raise InputError(
            f"{sources[0].path} (of {len(sources)} files)",
            "an empty corpus",
            "at least one record",
            "pass INPUTs of which one has a record",
        )
    content = format_options(options)
    target = os.path.join(path, fmt.MANIFEST)
    with contextlib.nullcontext() if os.path.exists(target) else build_lock(path, shared=task is not None):
        if os.path.exists(target):  # perhaps of another build that has just ended
            return describe_complete(path, sources, content, plan, options)
        build = _begin(path, sources, content, plan, alone=task is None)
        number, tasks = task or (0, 1)
        mine = range(number, build.num_shards, tasks)
        definition = options.tokenizer.definition if options.tokenizer else None
        if definition is not None:
            keep_tokenizer(definition, path)
        missing = [shard for shard in mine if not build.is_finished(shard)]
        did, bad = _write_shards(build, sources, plan, options, missing, workers, on_bad, watch)
        counts = did.documents, did.tokens, did.losses.lost, did.losses, bad, 0.0, did.truncated
        summary = Summary(path, len(mine), len(mine) - len(missing), *counts)
        summary.special_tokens, summary.doubled = dict(did.spelled), did.doubled
        summary.compared, summary.slowed, summary.slow = did.compared, did.slowed, did.slow
        summary.unprinted = dict(did.unprinted)
        summary.guessed_eos = getattr(options.tokenizer, "guessed", "")
        if task is None:
            summary.losses = check_losses(build, options.max_unaligned_spans)
            summary.special_tokens = read_spelled(build)
            try:
                manifest, summary.lost_spans = finalize(path), summary.losses.lost
            except InputError as error:  # no token at all
                if on_bad is None or did.documents:
                    raise
                left = f"; {bad:,} bad records were skipped" if bad else ""
                fix = f"{getattr(on_bad, 'path', 'on_bad')} lists bad records: correct them"
                raise InputError(path, f"{error.found}{left}", error.expected, fix) from error
            summary.documents, summary.tokens = manifest.num_documents, manifest.num_tokens
    summary.seconds = time.monotonic() - began
    return summary


def _begin(path: str, sources: Sequence[Source], options: BuildOptions, plan: Plan, alone: bool) -> Build:
    """The build in `path`, new or taken up.

    One of other inputs or options makes room if no shard of it is finished, and no other process may have begun it
    meanwhile.
    """
    inputs = [source.to_json() for source in sources]
    try:
        build = create_writer(path, options, inputs=inputs, plan=plan)
        check_since_start(path, sources)
    except OtherBuild as error:
        if not alone or not discard_unfinished(path, "ingest"):
            raise
        log.warning("%s: %s; no shard of it is finished: it begins again", error.path, error.found)
        build = create_writer(path, options, inputs=inputs, plan=plan)
        check_since_start(path, sources)
    return build


def format_options(options: Options) -> BuildOptions:
    """The options of the format: tokenizer, tracks, and in `extra` all else that decides the result."""
    if options.spelled != TEXT and options.columns.text is None and options.rules is None:
        found, expected = f"{options.spelled!r} for tokens as input", "text as input, which alone spells such tokens"
        raise ConfigError("special_tokens", found, expected, "omit --special-tokens")
    if (tokenizer := options.tokenizer) is not None:
        facts = Tokenizer(name=tokenizer.name, vocab_size=tokenizer.vocab_size, eos_id=tokenizer.eos_id)
    elif (size := options.vocab_size) is not None and options.columns.text is None:
        facts = unnamed(size, options.eos)
    else:
        raise ConfigError(
            "tokenizer",
            "none",
            "the tokenizer, or for tokens the size of its vocabulary",
            "add --tokenizer, or --vocab-size",
        )
    if options.bos is not None and (options.rules is not None or not 0 <= options.bos < facts.vocab_size):
        wanted = "none with a chat template, which writes its own" if options.rules else f"ids below {facts.vocab_size}"
        raise ConfigError("bos", f"token {options.bos}", wanted, "correct --bos, or omit it")
    columns = options.columns
    usual = "character" if columns.tokens is None else "token"
    if options.span_unit not in (None, usual) and (columns.tokens is not None or options.rules is not None):
        wanted = "none for conversations, which have no spans" if options.rules else "token for documents of tokens"
        raise ConfigError(
            "span_unit",
            repr(options.span_unit),
            wanted,
            "build without spans, then add them: conceptloader annotate --span-unit",
        )
    for what, given in (("vocabulary", options.vocabulary), ("scores", options.scores)):
        if unknown := sorted(set(given) - set(columns.tracks)):
            raise ConfigError(
                what,
                f"track {unknown[0]!r}",
                f"one of {', '.join(columns.tracks)}" if columns.tracks else "no track: no column has spans",
                "pass one of these tracks to --vocabulary and --scores",
            )
    tracks = {
        name: _track(options, track, options.depth if name == track else 1)
        for track in columns.tracks
        for name in level_names(track, options.depth)
    }
    if len(tracks) < len(columns.tracks) * options.depth:
        fix = "pass another name: --column spans_NAME=COLUMN"
        raise ConfigError("tracks", f"tracks {', '.join(columns.tracks)}", "names that no level of another has", fix)
    if columns.has_metadata:
        tracks[METADATA_TRACK] = TrackOptions(codec="json")
    for name, code in columns.numbers.items():
        dtype, _ = number_type(code)
        tracks[name] = TrackOptions(codec="numpy", parameters={"dtype": dtype})
    return BuildOptions(
        mode=options.mode or ("stream-with-metadata" if tracks else "token-stream"),
        tokenizer=facts,
        fields=dict(columns.fields),
        tracks=tracks,
        extra={
            "ingest": {
                **options.to_json(),
                "append_eos": options.appended is not None,
                **({} if options.span_unit in (None, usual) else {"span_unit": options.span_unit}),
                **({} if options.bos is None else {"bos": options.bos}),
                **({} if options.spelled == TEXT else {"special_tokens": options.spelled}),
                "columns": columns.to_json(),
                **({} if options.rules is None else {"chat": options.rules.to_json()}),
            }
        },
    )


def _track(options: Options, track: str, levels: int) -> TrackOptions:
    names, scores = options.vocabulary.get(track), options.scores.get(track)
    ids = "u2" if names is not None and len(names) <= 1 << 16 else "u4"
    parameters = {} if scores is None else {"ids": ids, "scores": scores}
    return TrackOptions(parameters=parameters, vocabulary=names, levels=levels)


def _write_shards(
    build: Build,
    sources: Sequence[Source],
    plan: Plan,
    options: Options,
    missing: Sequence[int],
    workers: int,
    on_bad: Callable[[str, str, str], None] | None,
    watch: Callable[[int, int], Watch] | None,
) -> tuple[Progress, int]:
    """Write the `missing` shards. Returns: what was done, and the number of bad records, which it does not have."""
    job = ShardJob(sources=sources, options=options, skip_bad=on_bad is not None)
    jobs = [replace(job, directory=build.path, shard=shard) for shard in missing]
    sizes = [sum(piece_bytes(sources[piece.source], piece) for piece in shard) for shard in plan]
    errors: list[ConceptloaderError] = []
    update = watch(sum(sizes), sum(sizes) - sum(sizes[shard] for shard in missing)) if watch else None
    done, told, bad = Progress(), set[str](), 0

    def on_news(_: int, progress: Progress) -> None:
        nonlocal bad
        done.add(progress)
        for track, loss in done.losses.items():  # hours before the build would end with it
            if loss.spans >= _TELLING and loss.lost > options.max_unaligned_spans * loss.spans and track not in told:
                told.add(track)
                told_now = loss.said(track)
                log.warning("track %r so far: %s; above --max-unaligned-spans the build will fail", track, told_now)
        for record in done.bad:
            if on_bad is not None:
                on_bad(*record)
        bad += len(done.bad)
        done.bad.clear()
        if update:
            update(progress)

    def on_end(i: int, _: Any, error: Exception | None) -> None:
        if error is None:
            log.info("shard %s is finished", build.shard_name(missing[i]))
        else:
            assert isinstance(error, ConceptloaderError)
            if len(missing) > 1:  # hours before the last one ends
                log.error("shard %s: %s", build.shard_name(missing[i]), error)
            errors.append(error)

    run_tasks(write_shard, jobs, workers, on_news, on_end)
    if not errors:
        return done, bad
    others = f" (and errors in {counted(len(errors) - 1, 'other shard')})" if errors[1:] else ""
    if isinstance(errors[0], ReadError):
        remedy = "what is finished is kept: make sure that the disk can be written, then run the same command again"
        raise ReadError(errors[0].path, f"{errors[0].found}{others}", errors[0].expected, remedy, errno=errors[0].errno)
    finished = build.num_shards - len(errors)
    kept = f"{finished} of {build.num_shards} shards are finished and kept" if finished else "no shard is finished"
    remedy, kind = "build into another directory" if finished else "run again", type(errors[0])
    remedy = f"fix the input or the options and {remedy}"
    if kind is BadRecord:
        remedy, kind = f"run again with --bad-records FILE to leave such records out, or {remedy}", InputError
    first = errors[0]
    fix = "; ".join(part for part in (first.fix, f"{kept}: {remedy}") if part)
    raise kind(first.path, f"{first.found}{others}", first.expected, fix)
