"""What `init` does for raw files: a recipe with the columns that it is sure of, and questions about the others."""

import argparse
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from itertools import islice
from typing import Any

import yaml

from conceptloader.base.arguments import by_key
from conceptloader.cli.output import Output
from conceptloader.errors import ConfigError, InputError
from conceptloader.format.spec.layout import name_problem
from conceptloader.ingest.records.columns import MAIN_TRACK, OWN_TEXT, SPANS_PREFIX, column_of
from conceptloader.ingest.records.inputs import Source, find_sources, read_rows
from conceptloader.ingest.records.names import count_names, require_new, write_names
from conceptloader.storage.durable import write_file

_ROWS = 1000  # that are looked at
_OF_TOKENS = ".bin", ".idx", ".ds", ".npy", ".u16", ".u32"

# Names that say what a column or field is; any other one is asked about.
_ID = "id", "doc_id", "document_id", "docid", "uuid", "guid", "_id"  # and all that end in uid
_CONTENT = {"text": ("text", "content", "body", "raw_content"), "tokens": ("tokens", "input_ids", "token_ids")}
_FIELDS = {
    "start": ("start", "begin", "start_char", "char_start", "start_offset"),
    "end": ("end", "stop", "end_char", "char_end", "end_offset"),
    "concepts": ("concepts", "concept", "labels", "label", "tags", "tag"),
}  # of spans
_SCORES = "scores", "score", "confidence"
_ASKED = {
    "metadata-column": "kept, to select documents by",
    "number": "a number per document, to weigh and select by",
    "field": "a number per token",
    "ignore-column": "omitted",
}


@dataclass
class Found:
    """columns: theirs by ours. roles: of columns and fields of spans, for people. asked: what might be said of others.

    options: further ones. named: tracks whose concepts have names.
    """

    columns: dict[str, str] = field(default_factory=dict)
    roles: dict[str, str] = field(default_factory=dict)
    options: dict[str, Any] = field(default_factory=dict)
    named: list[str] = field(default_factory=list)
    asked: dict[str, list[str]] = field(default_factory=lambda: {option: [] for option in _ASKED})
    notes: list[str] = field(default_factory=list)

    def call(self, ours: str, theirs: str, role: str = "") -> None:
        self.columns[ours] = theirs
        self.roles[theirs] = role or ours

    def ask(self, name: str, kind: str, aligned: bool = False) -> None:
        """A column that nothing is known of, or a field of spans."""
        self.asked["ignore-column"].append(name)
        if kind in ("text", "number", "flag", "object") and "." not in name:
            self.asked["metadata-column"].append(name)
        if kind == "number" and not name_problem(name):
            self.asked["number"].append(name)
        if aligned:
            self.asked["field"].append(name)


def write_recipe(arguments: argparse.Namespace, output: Output) -> None:
    """Write a recipe of `build`, and files of concept names. Raises: ConfigError, InputError."""
    for path in arguments.inputs:
        if path.endswith(_OF_TOKENS):
            fix = f"use them in place: conceptloader adopt {path} --out DIR --tokenizer TOKENIZER"
            raise ConfigError(f"input {path}", "a file of tokens", "records of documents", fix)
    sources, rows, values = _values(arguments.inputs)
    found, kinds = Found(), {name: _kind(some) for name, some in values.items()}
    _find_id(found, values, rows)
    if "messages" in kinds or {"prompt", "completion"} <= kinds.keys():
        found.options["chat"] = True
        chat = ("messages", "tools") if "messages" in kinds else ("prompt", "completion", "tools")
        found.roles |= {name: "conversation" for name in chat if name in kinds}
    else:
        _find_content(found, kinds, sources[0].path)
        _find_spans(found, values, kinds)
    tokens = found.columns.get("tokens")
    for name, kind in kinds.items():
        if name == "metadata" and kind == "object":
            found.roles[name] = "metadata"
        elif name not in found.roles:
            longs = [*map(len, values[tokens])] if tokens and kind in ("numbers", "integers") else None
            found.ask(name, kind, longs == [*map(len, values[name])] if longs else False)
    home, stem = os.path.dirname(arguments.out), os.path.basename(arguments.inputs[0].rstrip("/")).partition(".")[0]
    recipe = {"inputs": arguments.inputs, "out": os.path.join(home, "data", stem or "corpus")}
    if arguments.tokenizer is not None:
        recipe["tokenizer"] = arguments.tokenizer
    else:
        wanted = "tokenizer: tokenizer.json, a transformers folder, hub:OWNER/NAME, or bytes"
        found.notes.append(f"{wanted}{'; or vocab-size: of the tokens' if tokens else ''}")
    names = _vocabularies(arguments, sources, found)
    _write(arguments, found, recipe | found.options | ({"vocabulary": names} if names else {}), output)


def _values(inputs: Sequence[str]) -> tuple[list[Source], int, dict[str, list[Any]]]:
    """The files, how many first rows were read, and the values of each column in them, without None.

    Raises: InputError for no rows.
    """
    sources, bad = find_sources(inputs), list[str]()
    rows = [*islice((row for source in sources for _, row in read_rows(source, None, bad.append)), _ROWS)]
    if not rows:
        found = bad[0] if bad else "no rows"
        raise InputError(sources[0].path, found, "at least one record", "pass INPUTs of which one has a record")
    names = dict.fromkeys(name for row in rows for name in row)
    return sources, len(rows), {name: [row[name] for row in rows if row.get(name) is not None] for name in names}


def _kind(values: Sequence[Any]) -> str:
    """text, number, flag, object, integers, numbers or objects (lists of them), other, or none."""
    kinds = {_kind_of(value) for value in values} - {""}
    if kinds == {"integers", "numbers"}:
        return "numbers"
    return next(iter(kinds)) if len(kinds) == 1 else "other" if kinds else "none"


def _kind_of(value: Any) -> str:
    if isinstance(value, list):
        kinds = {_kind_of(one) for one in value if one is not None}
        integers = all(type(one) is int for one in value)
        return "" if not kinds else "integers" if integers else f"{kinds.pop()}s" if len(kinds) == 1 else "other"
    return {str: "text", int: "number", float: "number", bool: "flag", dict: "object"}.get(type(value), "other")


def _first(names: Sequence[str], columns: Mapping[str, str]) -> str | None:
    """The first of these names that a column has, in any case."""
    known = {name.lower(): name for name in reversed([*columns])}
    return next((known[name] for name in names if name in known), None)


def _id(values: Mapping[str, Sequence[Any]]) -> str | None:
    """The column whose name says that it is an id, and whose values are texts or integers."""
    fit = {name: "" for name, some in values.items() if some and all(type(one) in (str, int) for one in some)}
    return _first((*_ID, *(name.lower() for name in fit if name.lower().endswith("uid"))), fit)


def _find_id(found: Found, values: Mapping[str, Sequence[Any]], rows: int) -> None:
    name = _id(values)
    if name is not None:
        found.call("id", name)
        if repeated := len(values[name]) - len(set(map(str, values[name]))):
            found.notes.append(f"{name}: {repeated:,} of {rows:,} rows have an id that was there before")
        return
    maybe = [name for name, some in values.items() if _kind(some) in ("text", "number") and len({*some}) == rows]
    problem = "no column is surely an id, without which documents cannot be excluded, located or annotated by id"
    fix = f"if one of {', '.join(maybe)} is: `id: NAME` below column" if maybe else "none has another value in each row"
    found.notes.append(f"{problem}; {fix}")


def _find_content(found: Found, kinds: Mapping[str, str], path: str) -> None:
    for ours, fit in (("text", "text"), ("tokens", "integers")):
        some = {name: kind for name, kind in kinds.items() if kind == fit and name not in found.roles}
        if name := _first(_CONTENT[ours], some):
            found.call(ours, name)
            return
    texts = [name for name, kind in kinds.items() if kind == "text" and name not in found.roles]
    if not texts:
        wanted = f"a column of text, or of token ids called {' or '.join(_CONTENT['tokens'])}"
        raise InputError(path, _listing(kinds), wanted, "convert one, or name it (build --column text=NAME)")
    found.notes.append(f"no column is surely the text; if one of {', '.join(texts)} is: `text: NAME` below column")


def _find_spans(found: Found, values: Mapping[str, Sequence[Any]], kinds: Mapping[str, str]) -> None:
    """Columns of spans: the usual one, or the first one whose fields have names that are known, and those like it."""
    columns = [name for name, kind in kinds.items() if kind == "objects" and name not in found.roles]
    named: dict[str, str] | None = None
    for column in sorted(columns, key=lambda name: name != "spans"):
        spans = [one for some in values[column] for one in some if isinstance(one, dict)]
        theirs = {
            name: _kind([one[name] for one in spans if one.get(name) is not None]) for one in spans for name in one
        }
        fields = _span_fields(theirs)
        track = MAIN_TRACK if named is None else column.removeprefix(SPANS_PREFIX)
        if fields is None or (named is not None and (fields != named or name_problem(track))):
            continue
        named = fields
        found.call(column_of(track), column, f"spans of track {track}")
        found.columns |= fields
        if "scores" in fields:
            found.options.setdefault("scores", {})[track] = "f4"
        own = next((name for name in OWN_TEXT if name in theirs), None)
        if own is not None:
            found.roles[f"{column}.{own}"] = "the spans' own texts, compared"
        for name in theirs.keys() - {*fields.values(), own}:
            found.ask(f"{column}.{name}", "")
        if any(isinstance(one, str) for span in spans for one in _listed(span.get(fields["concepts"]))):
            found.named.append(track)


def _listed(value: Any) -> Sequence[Any]:
    return value if isinstance(value, list) else [value]


def _span_fields(kinds: Mapping[str, str]) -> dict[str, str] | None:
    """Theirs by ours of the fields of spans; None where they are none, or two may be one of these."""
    fields = dict[str, str]()
    for ours, names in (*_FIELDS.items(), ("scores", _SCORES)):
        fit = [name for name in kinds if name.lower() in names]
        if len(fit) > 1 or (not fit and ours != "scores"):
            return None
        if fit:
            fields[ours] = fit[0]
    return fields


def _listing(kinds: Mapping[str, str]) -> str:
    return "columns " + ", ".join(f"{name} ({kind})" for name, kind in kinds.items())


def _vocabularies(arguments: argparse.Namespace, sources: list[Source], found: Found) -> dict[str, str]:
    """Write the names of the concepts of each track, but for those that were given. Returns: the files by track."""
    files = by_key("vocabulary", arguments.vocabulary)
    if unknown := sorted(files.keys() - {*found.named}):
        wanted = f"one of {', '.join(found.named) or 'none'}"
        fix = "pass --vocabulary TRACK=FILE with one of these tracks"
        raise ConfigError("--vocabulary", f"track {unknown[0]!r}", wanted, fix)
    made = {track: f"{os.path.splitext(arguments.out)[0]}.{track}.txt" for track in found.named if track not in files}
    for path in made.values():
        require_new(path)
    for track, path in made.items():
        names = count_names(sources, track, found.columns, lambda _: None)
        write_names(path, names)
    return files | made


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


def _write(arguments: argparse.Namespace, found: Found, recipe: dict[str, Any], output: Output) -> None:
    """Write the recipe, ids first, with questions as comments, and say what is in it."""
    out = arguments.out
    columns = {ours: theirs for ours, theirs in found.columns.items() if ours != theirs}
    recipe = {key: _from_recipe(out, key, value) for key, value in recipe.items()} | (
        {"column": columns} if columns else {}
    )
    then = f"conceptloader build --recipe {out} --dry-run"
    asked = {option: names for option, names in found.asked.items() if names}
    lines = [f"# A recipe of conceptloader build. Answer what it asks, then: {then}"]
    lines += [f"# {note}" for note in found.notes]
    lines += [yaml.safe_dump(recipe, sort_keys=False, allow_unicode=True)]
    if asked:
        lines.append("# What are these? Leave each name in one of these lines, without the # in front:")
        lines += [f"#{option}: {_flow(option, names)}  # {_ASKED[option]}" for option, names in asked.items()]
    write_file(os.path.abspath(out), ("\n".join(lines) + "\n").encode())
    questions = asked.get("ignore-column", [])
    told = [f"{out}: a recipe", *(f"  {column}: {role}" for column, role in found.roles.items()), *found.notes]
    told += [f"to be answered in {out}: what are {', '.join(questions)}?"] if questions else []
    value = {"path": out, "recipe": recipe, "columns": found.roles, "questions": questions, "notes": found.notes}
    output.result(value, [*told, f"then: {then}"])


def _flow(option: str, names: Sequence[str]) -> str:
    """A list, or a mapping to the type of numbers, on a line of YAML."""
    value: Any = dict.fromkeys(names, "f4") if option in ("number", "field") else [*names]
    return yaml.safe_dump(value, default_flow_style=True, width=float("inf"), allow_unicode=True).strip()
