"""What `init` does for raw files: a recipe of `build` or `annotate`, tried on the first rows."""

import argparse
import contextlib
import os
from collections.abc import Sequence
from itertools import chain, count, islice
from typing import Any

import yaml

from conceptloader.base.packages import need_add_on
from conceptloader.cli.arguments import by_track
from conceptloader.cli.output import Output
from conceptloader.errors import ConceptloaderError, ConfigError, InputError
from conceptloader.format.read.files import load_manifest
from conceptloader.ingest.build.builder import IngestOptions, format_options, shard_job
from conceptloader.ingest.build.simple import with_chat
from conceptloader.ingest.build.trial import try_rows
from conceptloader.ingest.build.unaligned import Losses
from conceptloader.ingest.recipe import ROWS, Guess, guess, guess_annotations
from conceptloader.ingest.records.chat import load_rules
from conceptloader.ingest.records.columns import Columns
from conceptloader.ingest.records.detect import detect_columns
from conceptloader.ingest.records.inputs import Source, find_sources, read_rows
from conceptloader.ingest.records.lines import MAX_LINE_BYTES
from conceptloader.ingest.records.names import count_names, require_new, write_names
from conceptloader.ingest.records.tokenizer import changes_text, load_tokenizer
from conceptloader.ingest.records.vocabulary import load_vocabulary
from conceptloader.storage.durable import write_file

_OF_TOKENS = ".bin", ".idx", ".ds", ".npy", ".u16", ".u32"
_MANY = 10_000  # labels; more of them are likely to be no labels
_SHOWN = 3
_ANY = 1 << 31  # token ids, where nothing says how many there are
_MISSING = {
    "text": "tokenizer: tokenizer.json    # the model's: that file, a transformers folder, hub:OWNER/NAME, or bytes",
    "tokens": "vocab-size: 50257    # of the tokenizer that made the tokens; or tokenizer: tokenizer.json",
}


def write_recipe(arguments: argparse.Namespace, output: Output) -> None:
    """Write the recipe and files of concept names. Raises: ConfigError, InputError."""
    for path in arguments.inputs:
        if path.endswith(_OF_TOKENS):
            fix = f"use them in place: conceptloader adopt {path} --out DIR --tokenizer TOKENIZER"
            raise ConfigError(f"input {path}", "a file of tokens", "records of documents", fix)
    sources = find_sources(arguments.inputs)
    rows = _first_rows(sources)
    found = guess(rows)
    content = next((role for role in found.roles.values() if role in ("text", "tokens", "conversation")), None)
    if content is None:
        roles = ", ".join(rows[0] if rows else ())
        problem = f"found columns {roles or 'none'}: {found.doubts[0]}"
        raise InputError(sources[0].path, problem, fix="name it (build --column text=NAME or tokens=NAME)")
    names = _vocabularies(arguments, sources, found)
    _try(sources, found, arguments.tokenizer, names)
    stem = os.path.basename(sources[0].path).partition(".")[0]
    recipe: dict[str, Any] = {"inputs": arguments.inputs, "out": f"data/{stem}"}
    if arguments.tokenizer is not None:
        recipe["tokenizer"] = arguments.tokenizer
    recipe |= found.options | ({"vocabulary": names} if names else {})
    missing = _MISSING["tokens" if content == "tokens" else "text"] if arguments.tokenizer is None else None
    _write("build", arguments.out, f"the first {len(rows):,} rows of {sources[0].path}", found, recipe, missing, output)


def write_annotate_recipe(arguments: argparse.Namespace, dataset: str, inputs: list[str], output: Output) -> None:
    """Write the recipe of `annotate` and a file of concept names. Raises: ConfigError, InputError, FormatError."""
    add_on = need_add_on("conceptloader.ingest.annotate.annotate", "a recipe of annotate")
    sources = find_sources(inputs)
    rows = _first_rows(sources)
    manifest, _ = load_manifest(dataset, arguments.root)
    found = guess_annotations(rows, ids=bool((manifest.shards.files["documents.hash"].size > 0).any()))
    if not found.roles:
        raise InputError(
            sources[0].path,
            f"columns {', '.join(rows[0] if rows else ()) or 'none'}",
            "one that names the document, and spans with start, end and concepts",
            "name them (annotate --column OURS=THEIRS); for a number per document, annotate --number NAME:TYPE",
        )
    names = _vocabularies(arguments, sources, found)
    free = (f"concepts{number}" for number in chain([""], count(2)))
    track = next(name for name in free if name not in manifest.tracks)
    recipe: dict[str, Any] = {"inputs": inputs, "out": f"{dataset.rstrip('/')}-{track}", "track": track}
    recipe |= {"root": arguments.root} if arguments.root else {}
    recipe |= {"tokenizer": arguments.tokenizer} if arguments.tokenizer is not None else {}
    recipe |= found.options | ({"vocabulary": names["concepts"]} if names else {})
    options = add_on.AnnotateOptions(
        track=track,
        parameters=recipe.get("parameters"),
        vocabulary=load_vocabulary(names["concepts"]) if names else None,
        tokenizer=load_tokenizer(arguments.tokenizer, ends=False) if arguments.tokenizer is not None else None,
        ignored=recipe.get("ignore-column", ()),
        columns=recipe.get("column", {}),
        overlap=recipe.get("overlap", "error"),
    )
    losses, bad = Losses(), list[tuple[str, str, str]]()
    try:
        losses = add_on.try_annotations(dataset, inputs, options, arguments.root, ROWS, lambda *one: bad.append(one))
    except ConceptloaderError as error:
        found.doubts.append(str(error))
    _doubt(found, losses.lines(options.max_unaligned_spans), bad, len(rows))
    where = f"the first {len(rows):,} rows of {sources[0].path}"
    _write(f"annotate {dataset}", arguments.out, where, found, recipe, None, output)


def _first_rows(sources: list[Source]) -> list[dict[str, Any]]:
    numbered = chain.from_iterable(read_rows(source, MAX_LINE_BYTES) for source in sources)
    return [row for _, row in islice(numbered, ROWS)]


def _vocabularies(arguments: argparse.Namespace, sources: list[Source], found: Guess) -> dict[str, str]:
    """Write the names of the concepts of each track, but for those that were given. Returns: the files by track."""
    files = by_track(arguments.vocabulary)
    if unknown := sorted(files.keys() - {*found.named}):
        raise ConfigError("--vocabulary", f"track {unknown[0]!r}", f"one of {', '.join(found.named) or 'none'}")
    for track in (name for name in found.named if name not in files):
        path = f"{os.path.splitext(arguments.out)[0]}.{track}.txt"
        if arguments.overwrite:
            with contextlib.suppress(FileNotFoundError):
                os.unlink(path)
        require_new(path)
        flat = "start" in found.roles.values()
        names = count_names(sources, track, found.options.get("column", {}), MAX_LINE_BYTES, flat=flat)
        kept, _ = write_names(path, names)
        files[track] = path
        if kept > _MANY:
            found.doubts.append(f"{path}: {kept:,} names of concepts; are these labels?")
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


def _try(sources: list[Source], found: Guess, given: str | None, names: dict[str, str]) -> None:
    """Place the first rows, and add what is wrong with them to the doubts. given: the tokenizer."""
    chat = "chat" in found.options
    if chat and given is None:
        return
    tokens = "tokens" in found.roles.values()
    try:
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
        )
        options = with_chat(options, load_rules(str(given), None, None) if chat else None)
        tried = try_rows(shard_job(sources, options, skip_bad=True), format_options(options))
    except ConceptloaderError as error:
        found.doubts.append(str(error))
        return
    if tried.spelled:
        listed = ", ".join(f"{name} ({count:,})" for name, count in sorted(tried.spelled.items()))
        found.doubts.append(f"special tokens that text spells, which stay text (build --special-tokens): {listed}")
    _doubt(found, tried.losses.lines(options.max_unaligned_spans), tried.bad, tried.documents + len(tried.bad))


def _doubt(found: Guess, losses: list[str], bad: Sequence[tuple[str, str, str]], rows: int) -> None:
    """Add what a trial of these rows found."""
    found.doubts += losses + [f"{path}: {where}: {problem}" for path, where, problem in bad[:_SHOWN]]
    if (more := len(bad) - _SHOWN) > 0:
        found.doubts.append(f"{more:,} more such rows of {rows:,}")


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
    text = "\n".join(comments) + "\n" + yaml.safe_dump(recipe, sort_keys=False, allow_unicode=True)
    write_file(os.path.abspath(out), text.encode())
    lines = [f"{out}: a recipe by {where}"]
    lines += [f"  {column}: {role}" for column, role in found.roles.items()]
    lines += [f"look at {doubt}" for doubt in found.doubts]
    if missing is not None:
        lines.append(f"complete it: {missing.partition(' ')[0]} is missing")
    value = {"path": out, "recipe": recipe, "columns": found.roles, "doubts": found.doubts}
    output.result(value, [*lines, f"then: conceptloader {command} --recipe {out}"])
