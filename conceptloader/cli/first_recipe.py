"""What `init` does for raw files: a recipe of a build, tried on the first rows."""

import argparse
import contextlib
import os
from itertools import chain, islice
from typing import Any

import yaml

from conceptloader.cli.arguments import by_track
from conceptloader.cli.output import Output
from conceptloader.errors import ConceptloaderError, ConfigError, InputError
from conceptloader.ingest.build.builder import IngestOptions, format_options, shard_job
from conceptloader.ingest.build.simple import with_chat
from conceptloader.ingest.build.trial import try_rows
from conceptloader.ingest.recipe import ROWS, Guess, guess
from conceptloader.ingest.records.chat import load_rules
from conceptloader.ingest.records.columns import Columns
from conceptloader.ingest.records.detect import detect_columns
from conceptloader.ingest.records.inputs import Source, find_sources, read_rows
from conceptloader.ingest.records.lines import MAX_LINE_BYTES
from conceptloader.ingest.records.names import count_names, require_new, write_names
from conceptloader.ingest.records.tokenizer import load_tokenizer
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
    numbered = chain.from_iterable(read_rows(source, MAX_LINE_BYTES) for source in sources)
    rows = [row for _, row in islice(numbered, ROWS)]
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
    write_file(os.path.abspath(arguments.out), _text(arguments.out, sources[0], len(rows), found, recipe, missing))
    value = {"path": arguments.out, "recipe": recipe, "columns": found.roles, "doubts": found.doubts}
    lines = [f"{arguments.out}: a recipe by the first {len(rows):,} rows of {sources[0].path}"]
    lines += [f"  {column}: {role}" for column, role in found.roles.items()]
    lines += [f"look at {doubt}" for doubt in found.doubts]
    if missing is not None:
        lines.append(f"complete it: {missing.partition(' ')[0]} is missing")
    output.result(value, [*lines, f"then: conceptloader build --recipe {arguments.out}"])


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
        names = count_names(sources, track, found.options.get("column", {}), MAX_LINE_BYTES)
        count, _ = write_names(path, names)
        files[track] = path
        if count > _MANY:
            found.doubts.append(f"{path}: {count:,} names of concepts; are these labels?")
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
        options = IngestOptions(
            columns=columns,
            tokenizer=None if tokens and given is None else load_tokenizer(given or "bytes"),
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
    found.doubts += tried.losses.lines()
    found.doubts += [f"{path}: {where}: {problem}" for path, where, problem in tried.bad[:_SHOWN]]
    if more := len(tried.bad) - _SHOWN:
        found.doubts += [f"{more:,} more such rows of {tried.documents + len(tried.bad):,}"] * (more > 0)


def _text(out: str, source: Source, rows: int, found: Guess, recipe: dict[str, Any], missing: str | None) -> bytes:
    """The recipe with comments."""
    width = max(map(len, found.roles))
    lines = [
        f"# A recipe of conceptloader build, guessed from the first {rows:,} rows of {source.path}. Check it, then:",
        f"#   conceptloader build --recipe {out}",
        "#",
        *(f"# {column:<{width}}  {role}" for column, role in found.roles.items()),
        *(["#", "# Look at:"] if found.doubts else []),
        *(f"#   {doubt}" for doubt in found.doubts),
        *([f"# {missing}"] if missing is not None else []),
    ]
    return ("\n".join(lines) + "\n" + yaml.safe_dump(recipe, sort_keys=False, allow_unicode=True)).encode()
