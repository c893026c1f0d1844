"""What `init` does for raw files: a recipe of `build` or `annotate`, tried on the first rows."""

import argparse
import contextlib
import os
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from functools import partial
from itertools import chain, count, groupby, islice
from operator import itemgetter
from typing import Any

import yaml

from conceptloader.base.packages import need_add_on
from conceptloader.cli.arguments import by_track
from conceptloader.cli.output import Output
from conceptloader.errors import ConceptloaderError, ConfigError, InputError
from conceptloader.format.read.files import Files, load_manifest
from conceptloader.format.read.ranges import Ranges
from conceptloader.ingest.align.rules import SPAN_UNITS
from conceptloader.ingest.align.units import UNITS
from conceptloader.ingest.build.arguments import content_lines
from conceptloader.ingest.build.builder import IngestOptions, format_options, shard_job
from conceptloader.ingest.build.simple import with_chat
from conceptloader.ingest.build.trial import try_rows
from conceptloader.ingest.build.unaligned import Losses
from conceptloader.ingest.hub import TOKENIZER_FILES, fetched
from conceptloader.ingest.recipe import OWN_TEXT_ROLE, ROWS, Guess, guess, guess_annotations
from conceptloader.ingest.records.chat import load_rules
from conceptloader.ingest.records.columns import Columns
from conceptloader.ingest.records.detect import detect_columns
from conceptloader.ingest.records.inputs import Source, find_sources, read_rows
from conceptloader.ingest.records.names import count_names, require_new, write_names
from conceptloader.ingest.records.tokenizer import changes_text, load_tokenizer
from conceptloader.ingest.records.vocabulary import load_vocabulary
from conceptloader.storage.durable import write_file

_OF_TOKENS = ".bin", ".idx", ".ds", ".npy", ".u16", ".u32"
_MANY = 10_000  # labels; more of them are likely to be no labels
_SHOWN = 3
_HELD = 10_000  # rows at most, from which columns are guessed
_ANY = 1 << 31  # token ids, where nothing says how many there are
_MISSING = {
    "text": "tokenizer: tokenizer.json    # the model's: that file, a transformers folder, hub:OWNER/NAME, or bytes",
    "tokens": "vocab-size: 50257    # of the tokenizer that made the tokens; or tokenizer: tokenizer.json",
}


@contextlib.contextmanager
def without_names() -> Iterator[contextlib.ExitStack]:
    """Yield what removes files of names if no recipe is written, since the next try would find them."""
    with contextlib.ExitStack() as undo:
        yield undo
        undo.pop_all()


def write_recipe(arguments: argparse.Namespace, output: Output, undo: contextlib.ExitStack) -> None:
    """Write the recipe and files of concept names. Raises: ConfigError, InputError."""
    for path in arguments.inputs:
        if path.endswith(_OF_TOKENS):
            fix = f"use them in place: conceptloader adopt {path} --out DIR --tokenizer TOKENIZER"
            raise ConfigError(f"input {path}", "a file of tokens", "records of documents", fix)
    sources = find_sources(arguments.inputs)
    found, rows, first = _surveyed(arguments, sources, guess)
    content = next((role for role in found.roles.values() if role in ("text", "tokens", "conversation")), None)
    if content is None:
        fix = "convert one, or name it (build --column text=NAME or tokens=NAME)"
        raise InputError(first.path, found.doubts[0], fix=fix)
    names = _vocabularies(arguments, sources, found, undo)
    _try(sources, found, arguments, names)
    stem = os.path.basename(sources[0].path).partition(".")[0]
    home = os.path.dirname(arguments.out)
    recipe: dict[str, Any] = {"inputs": arguments.inputs, "out": os.path.join(home, "data", stem)}
    if arguments.tokenizer is not None:
        recipe["tokenizer"] = arguments.tokenizer
    recipe |= found.options | ({"vocabulary": names} if names else {})
    missing = _MISSING["tokens" if content == "tokens" else "text"] if arguments.tokenizer is None else None
    _write("build", arguments.out, f"the first {len(rows):,} rows of {sources[0].path}", found, recipe, missing, output)


def write_annotate_recipe(
    arguments: argparse.Namespace, dataset: str, inputs: list[str], output: Output, undo: contextlib.ExitStack
) -> None:
    """Write the recipe of `annotate` and a file of concept names. Raises: ConfigError, InputError, FormatError."""
    add_on = need_add_on("conceptloader.ingest.annotate.annotate", "a recipe of annotate")
    sources = find_sources(inputs)
    manifest, allowed = load_manifest(dataset, arguments.root)
    ids = bool((manifest.shards.files["documents.hash"].size > 0).any())
    found, rows, first = _surveyed(arguments, sources, partial(guess_annotations, ids=ids))
    if not found.roles:
        raise InputError(
            first.path,
            found.doubts[0],
            "a column that names the document, and spans with start, end and concepts",
            "name them (annotate --column OURS=THEIRS); for a number per document, annotate --number NAME:TYPE",
        )
    tokenizer = None if arguments.tokenizer is None else load_tokenizer(arguments.tokenizer, ends=False)
    names = _vocabularies(arguments, sources, found, undo)
    free = (f"concepts{number}" for number in chain([""], count(2)))
    track = next(name for name in free if name not in manifest.tracks)
    out = f"{dataset.rstrip('/')}-{track}"
    recipe: dict[str, Any] = {"inputs": inputs, "out": out, "track": track}
    recipe |= {"root": arguments.root} if arguments.root else {}
    recipe |= {"tokenizer": arguments.tokenizer} if arguments.tokenizer is not None else {}
    recipe |= found.options | ({"vocabulary": names["concepts"]} if names else {})
    options = add_on.AnnotateOptions(
        track=track,
        parameters=recipe.get("parameters"),
        vocabulary=load_vocabulary(names["concepts"]) if names else None,
        tokenizer=tokenizer,
        ignored=recipe.get("ignore-column", ()),
        columns=recipe.get("column", {}),
        overlap=recipe.get("overlap", "error"),
    )
    losses, bad = Losses(), list[tuple[str, ...]]()
    number = ROWS if arguments.rows is None else arguments.rows
    problems: list[str] = []
    # Where texts of the spans say what offsets count, and it is not what the build counted, that is found out.
    own = OWN_TEXT_ROLE in found.roles.values()

    def on_bad(*one: str) -> None:
        bad.append(one)

    with contextlib.closing(Files(manifest, allowed)) as files:
        for unit in (None, *SPAN_UNITS) if own else (None,):
            bad.clear()
            given = replace(options, span_unit=unit)
            try:
                losses = add_on.try_annotations(Ranges(files), sources, given, number, on_bad)
            except ConceptloaderError as error:
                problems.append(str(error))
                continue
            if unit is not None:
                recipe["span-unit"] = unit
                problems = [f"offsets are in {UNITS[unit].plural}, by the texts of the spans"]
            break
    found.doubts += problems[:1]
    _doubt(found, losses.lines(options.max_unaligned_spans), bad, len(rows))
    where = f"the first {len(rows):,} rows of {sources[0].path}"
    _write(f"annotate {dataset}", arguments.out, where, found, recipe, None, output)


def _surveyed(
    arguments: argparse.Namespace, sources: list[Source], look: Callable[[list[dict[str, Any]]], Guess]
) -> tuple[Guess, list[dict[str, Any]], Source]:
    """What `look` finds in the first rows, these, and their first file; rows that cannot be read are counted.

    Where it finds nothing, these are the rows of the first file of which this is true.
    """
    bad: list[str] = []
    found_rows = ((source, row) for source in sources for _, row in read_rows(source, None, bad.append))
    held = [*islice(found_rows, int(min(arguments.rows or ROWS, _HELD)))]
    if not held and bad:
        raise InputError.saying("", bad[0])
    if not held:
        raise InputError(sources[0].path, "no rows", "at least one record", "pass INPUTs of which one has a record")
    rows, first = [row for _, row in held], held[0][0]
    found = look(rows)
    if not found.roles:
        for source, group in groupby(held, itemgetter(0)):
            some = [row for _, row in group]
            if not (alone := look(some)).roles:
                found, rows, first = alone, some, source
                break
    _count(found, bad, "rows that cannot be read")
    return found, rows, first


def _count(found: Guess, bad: Sequence[str], what: str) -> None:
    """Add how many are wrong, and the first ones, to the doubts."""
    if bad:
        found.doubts += [f"{len(bad):,} {what}, such as {bad[0]}", *bad[1:_SHOWN]]


def _vocabularies(
    arguments: argparse.Namespace, sources: list[Source], found: Guess, undo: contextlib.ExitStack
) -> dict[str, str]:
    """Write the names of the concepts of each track, but for those that were given. Returns: the files by track."""
    files = by_track(arguments.vocabulary)
    if unknown := sorted(files.keys() - {*found.named}):
        raise ConfigError(
            "--vocabulary",
            f"track {unknown[0]!r}",
            f"one of {', '.join(found.named) or 'none'}",
            "pass --vocabulary TRACK=FILE with one of these tracks",
        )
    for track in (name for name in found.named if name not in files):
        path = f"{os.path.splitext(arguments.out)[0]}.{track}.txt"
        if arguments.overwrite:
            with contextlib.suppress(FileNotFoundError):
                os.unlink(path)
        require_new(path)
        flat = "start" in found.roles.values()
        bad: list[str] = []
        columns = found.options.get("column", {})
        names = count_names(sources, track, columns, flat, bad.append)
        _count(found, bad, f"rows of all without the names of track {track}")
        write_names(path, names)
        if not arguments.overwrite:  # else the next try replaces it
            undo.callback(os.unlink, path)
        files[track] = path
        if len(names) > _MANY:
            found.doubts.append(f"{path}: {len(names):,} names of concepts; are these labels?")
    return files


def _columns(sources: list[Source], found: Guess) -> Columns:
    given = found.options
    return detect_columns(
        sources,
        given.get("column"),
        metadata_columns=given.get("metadata-column", ()),
        fields=given.get("field"),
        numbers=given.get("number"),
        ignored=given.get("ignore-column", ()),
    )


def _try(sources: list[Source], found: Guess, arguments: argparse.Namespace, names: dict[str, str]) -> None:
    """Place the first rows, and add what is wrong with them to the doubts."""
    given = arguments.tokenizer
    chat = "chat" in found.options
    if chat and given is None:
        return
    tokens = "tokens" in found.roles.values()
    try:
        given = None if given is None else fetched(given, "model", TOKENIZER_FILES)  # once for all who read it
        columns = Columns(ignored=found.options.get("ignore-column", ())) if chat else _columns(sources, found)
        tokenizer = None if tokens and given is None else load_tokenizer(given or "bytes")
        if tokenizer is not None and (changed := changes_text(tokenizer.definition)):
            found.doubts.append(f"tokenizer: {changed}: `annotate` will need offsets in tokens")
        options = IngestOptions(
            columns=columns,
            tokenizer=tokenizer,
            vocab_size=_ANY if tokens and given is None else None,
            vocabularies={track: load_vocabulary(path) for track, path in names.items()},
            scores=found.options.get("scores", {}),
            overlap=found.options.get("overlap", "error"),
            span_unit=found.options.get("span-unit"),
        )
        options = with_chat(options, load_rules(str(given)) if chat else None)
        job = shard_job(sources, options, skip_bad=True)
        tried = try_rows(job, format_options(options), arguments.rows).done
    except ConceptloaderError as error:
        found.doubts.append(str(error))
        return
    found.doubts += content_lines(tried.spelled, tried.unprinted, tried.doubled)
    _doubt(found, tried.losses.lines(options.max_unaligned_spans), tried.bad, tried.documents + len(tried.bad))


def _doubt(found: Guess, losses: list[str], bad: Sequence[tuple[str, ...]], rows: int) -> None:
    """Add what a trial of these rows found."""
    found.doubts += losses + [f"{path}: {where}: {problem}" for path, where, problem in bad[:_SHOWN]]
    if (more := len(bad) - _SHOWN) > 0:
        found.doubts.append(f"{more:,} more such rows of {rows:,}")


def _from_recipe(out: str, key: str, value: Any) -> Any:
    """An option as it stands in the recipe `out`, to which its paths are relative."""
    if isinstance(value, list) and key in ("inputs", "root"):
        return [_from_recipe(out, "out", one) for one in value]
    if isinstance(value, dict) and key == "vocabulary":
        return {track: _from_recipe(out, "out", one) for track, one in value.items()}
    if not isinstance(value, str) or key not in ("out", "tokenizer", "vocabulary"):
        return value
    named = value == "bytes" or value.startswith("hub:") or "://" in value or os.path.isabs(value)
    return value if named else os.path.relpath(value, os.path.dirname(out) or ".")


def _write(
    command: str, out: str, where: str, found: Guess, recipe: dict[str, Any], missing: str | None, output: Output
) -> None:
    """Write the recipe with comments, and say what is in it. where: the rows that it is guessed from."""
    width = max(map(len, found.roles))
    comments = [
        f"# A recipe of conceptloader {command.split()[0]}, guessed from {where}. Check it, then:",
        f"#   conceptloader {command} --recipe {out}",
        "#",
        *(f"# {column:<{width}}  {role}" for column, role in found.roles.items()),
        *(["#", "# Look at:"] if found.doubts else []),
        *(f"#   {doubt}" for doubt in found.doubts),
        *([f"# {missing}"] if missing is not None else []),
    ]
    recipe = {key: _from_recipe(out, key, value) for key, value in recipe.items()}
    text = "\n".join(comments) + "\n" + yaml.safe_dump(recipe, sort_keys=False, allow_unicode=True)
    write_file(os.path.abspath(out), text.encode())
    lines = [f"{out}: a recipe by {where}"]
    lines += [f"  {column}: {role}" for column, role in found.roles.items()]
    lines += [f"look at {doubt}" for doubt in found.doubts]
    if missing is not None:
        lines.append(f"complete it: {missing.partition(' ')[0]} is missing")
    value = {"path": out, "recipe": recipe, "columns": found.roles, "doubts": found.doubts}
    output.result(value, [*lines, f"then: conceptloader {command} --recipe {out}"])
