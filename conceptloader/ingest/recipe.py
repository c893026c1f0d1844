"""What the columns of raw files hold, guessed from their first rows: the options of a build."""

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import accumulate
from typing import Any

from conceptloader.format.spec.layout import name_problem
from conceptloader.ingest.align.units import UNITS, count_fitting, lengths_in
from conceptloader.ingest.records.columns import MAIN_TRACK, METADATA_TRACK, OWN_TEXT, SPANS_PREFIX, column_of

ROWS = 1000  # that are looked at
OWN_TEXT_ROLE = "the spans' own texts, compared"
_FEW = 10  # rows, one of which is a reason
_MOST = 0.9  # of the values of a column, whose type is the column's

# Names that columns and fields have in public corpora, the likeliest first.
_TEXT = "text", "content", "body", "document", "raw_content", "article", "passage", "code"
_TOKENS = "tokens", "input_ids", "token_ids"
_ID = "id", "doc_id", "document_id", "docid", "uuid", "guid", "_id", "key", "url"
_DOCUMENT = "document", "doc", "nr", "document_number", "number", "index", *_ID
_SPANS = "spans", "annotations", "entities", "labels"
_START = "start", "begin", "start_char", "char_start", "start_offset", "from"
_END = "end", "stop", "end_char", "char_end", "end_offset", "to"
_CONCEPTS = "concepts", "concept", "labels", "label", "tags", "tag", "entity", "entity_type", "type", "category", "name"
_FIELDS = {
    "start": (_START, ("integer",)),
    "end": (_END, ("integer",)),
    "concepts": (_CONCEPTS, ("text", "integer", "integers", "other")),
}  # of spans: the names, and the kinds of values
_SCORES = "scores", "score", "confidence", "probability", "prob", "weight"
_OWN = *OWN_TEXT, "mention", "surface_form", "span_text", "covered_text", "phrase", "form", "quote", "string", "value"
_CHAT = {"messages"}, {"prompt", "completion"}, {"prompt", "chosen", "rejected"}


@dataclass
class Guess:
    """What a build of these rows would be told.

    Attributes:
        options: Options of `conceptloader build`, as in a recipe, but for inputs, `out`, tokenizer and vocabularies.
        roles: Column -> what it holds, for people.
        doubts: What somebody should look at before anything long runs.
        named: Tracks whose concepts are names, and need a vocabulary.
    """

    options: dict[str, Any] = field(default_factory=dict)
    roles: dict[str, str] = field(default_factory=dict)
    doubts: list[str] = field(default_factory=list)
    named: list[str] = field(default_factory=list)

    def add(self, option: str, value: Any) -> None:
        """One more value of an option that may be given several times."""
        self.options.setdefault(option, []).append(value)

    def call(self, ours: str, theirs: str) -> None:
        """`--column ours=theirs`, where they differ."""
        if ours != theirs:
            self.options.setdefault("column", {})[ours] = theirs


def guess(rows: Sequence[Mapping[str, Any]]) -> Guess:
    """Roles of the columns of these rows.

    Args:
        rows: The first ones of the input, as Python objects.

    Returns:
        Options, roles and doubts. Without a column that can be the content, neither `text` nor `tokens` is among the
        roles.
    """
    found = Guess()
    values = {name: _there(rows, name) for name in dict.fromkeys(_names(rows))}
    kinds = {name: _kind(some) for name, some in values.items()}
    if any(columns <= kinds.keys() for columns in _CHAT):
        _chat(found, kinds)
        return found
    content = _first(_TEXT, kinds, "text") or _longest(values, kinds)
    tokens = _first(_TOKENS, kinds, "integers") if content is None else None
    for ours, column in (("text", content), ("tokens", tokens)):
        if column is not None:
            found.call(ours, column)
            found.roles[column] = ours
    if content is None and tokens is None:
        nested = "; fields in objects are not read: write them as columns" if "object" in kinds.values() else ""
        tokens_too = f"none of token ids called {' or '.join(_TOKENS)}{nested}"
        found.doubts.append(f"found {_columns(values)}: no column of text, and {tokens_too}")
        return found
    taken = content or tokens or ""
    _id(found, values, len(rows))
    _tracks(found, values, kinds, [row.get(taken) for row in rows], rows)
    for name, kind in kinds.items():
        if name not in found.roles:
            _rest(found, name, kind, values, tokens)
    _lacking(found, values, len(rows))
    return found


def guess_annotations(rows: Sequence[Mapping[str, Any]], ids: bool) -> Guess:
    """Roles of the columns of rows that annotate documents of a dataset with concepts.

    Args:
        rows: The first ones, as Python objects; each has a list of spans, or is a span.
        ids: Whether the dataset keeps ids; else numbers name its documents.

    Returns:
        Options of `annotate`, roles and doubts. Where nothing names a document or can be a span, there are no roles,
        and the doubt says what the columns are.
    """
    found = Guess()
    values = {name: _there(rows, name) for name in dict.fromkeys(_names(rows))}
    kinds = {name: _kind(some) for name, some in values.items()}
    by_id = _find_id(values) if ids else None
    document = by_id or _first(_DOCUMENT, kinds, "integer") or ""
    rest = {name: kind for name, kind in kinds.items() if name != document}
    if flat := _span_fields(rest):
        lists: dict[Any, list[Any]] = {}
        for row in rows:
            lists.setdefault(str(row.get(document)), []).append({name: row.get(name) for name in rest})
        grouped = [{"spans": spans} for spans in lists.values()]
        _tracks(found, {"spans": [*lists.values()]}, {"spans": "objects"}, [None] * len(grouped), grouped, one=True)
        found.roles = {theirs: ours for ours, theirs in flat.items()}
    else:
        _tracks(found, values, rest, [None] * len(rows), rows, one=True)
    if not document or not found.roles:
        unread = [why for name, kind in rest.items() if (why := _unread(Guess(), name, kind, values[name]))]
        return Guess(doubts=["; ".join([_columns(values), *unread])])
    found.roles = {document: "id" if by_id else "document", **found.roles}
    found.call(found.roles[document], document)
    of_spans = [name.removeprefix("spans.") if flat else name for name in found.options.pop("ignore-column", ())]
    ignored = [*of_spans, *(name for name in rest if name not in found.roles and name not in of_spans)]
    if ignored:
        found.options["ignore-column"] = ignored
        found.roles |= dict.fromkeys(ignored, "ignored")
    if scores := found.options.pop("scores", None):
        found.options["parameters"] = {"scores": scores["concepts"]}
    _lacking(found, {**values, **dict.fromkeys(of_spans, ())}, len(rows))
    return found


def _lacking(found: Guess, values: Mapping[str, Sequence[Any]], rows: int) -> None:
    """Columns that some rows lack."""
    for name, role in found.roles.items():
        if role != "ignored" and name in values and 0 < (there := len(values[name])) < rows:
            fix = ": --bad-records lists them" if role in ("text", "tokens") else ""
            found.doubts.append(f"{name}: {rows - there:,} of {rows:,} rows have none{fix}")


def _names(rows: Iterable[Mapping[str, Any]]) -> Iterable[str]:
    for row in rows:
        yield from row


def _there(rows: Iterable[Mapping[str, Any]], name: str) -> list[Any]:
    return [row[name] for row in rows if row.get(name) is not None]


def _kind(values: Sequence[Any]) -> str:
    """Of the values of a column, None apart: text, integer, number, integers, numbers, objects, object, other, none."""
    kinds = Counter(map(_kind_of, values))
    for narrow, wide in (("integer", "number"), ("integers", "numbers")):
        if wide in kinds:
            kinds[wide] += kinds.pop(narrow, 0)
    empty = kinds.pop("empty", 0)
    if not kinds:
        return "other" if empty else "none"
    kind, count = kinds.most_common(1)[0]
    others = kinds.total() - count + (0 if kind in ("integers", "numbers", "objects") else empty)
    return kind if others <= (1 - _MOST) * len(values) else "other"


def _kind_of(value: Any) -> str:
    if type(value) is not list:
        return {str: "text", int: "integer", float: "number", dict: "object"}.get(type(value), "other")
    items = Counter(type(item) for item in value if item is not None)
    if not items:
        return "empty"
    if items.keys() <= {int, float, bool}:
        return "integers" if items.keys() == {int} else "numbers"
    return "objects" if items[dict] > items.total() / 2 else "other"


def _columns(values: Mapping[str, Sequence[Any]]) -> str:
    return "columns " + (", ".join(f"{name} ({_words(some)})" for name, some in values.items()) or "none")


def _words(values: Iterable[Any]) -> str:
    """What these values are, for people."""
    return " or ".join(sorted({_word(value) for value in values if value is not None})) or "null"


def _word(value: Any) -> str:
    if type(value) is list:
        return f"lists of {_words(value)}"
    return {str: "text", int: "integer", dict: "object"}.get(type(value), type(value).__name__)


def _first(names: Sequence[str], kinds: Mapping[str, str], *wanted: str) -> str | None:
    """The first of these names that is a column, or field, of a wanted kind, in any case."""
    known = {name.lower(): name for name, kind in reversed([*kinds.items()]) if kind in wanted}
    return next((known[name] for name in names if name in known), None)


def _longest(values: Mapping[str, Sequence[Any]], kinds: Mapping[str, str]) -> str | None:
    """The column with the longest texts, if they are longer than names and addresses are."""
    texts = {name: [v for v in values[name] if type(v) is str] for name, kind in kinds.items() if kind == "text"}
    sizes = {name: sum(map(len, some)) / len(some) for name, some in texts.items()}
    best = max(sizes, key=lambda name: sizes[name], default=None)
    return best if best is not None and sizes[best] > 80 else None


def _chat(found: Guess, kinds: Mapping[str, str]) -> None:
    used = next(columns for columns in _CHAT if columns <= kinds.keys()) | {"id", "tools"}
    found.options["chat"] = True
    for name in kinds:
        found.roles[name] = "conversation" if name in used - {"id"} else "id" if name == "id" else "ignored"
        if name not in used:
            found.add("ignore-column", name)


def _find_id(values: Mapping[str, Sequence[Any]]) -> str | None:
    """The likeliest column of texts and integers, of which files of one corpus may have one each."""
    fit = {name: sum(type(one) in (str, int) for one in some) for name, some in values.items()}
    return _first(_ID, {name: "id" for name, some in values.items() if 0 < fit[name] >= _MOST * len(some)}, "id")


def _id(found: Guess, values: Mapping[str, Sequence[Any]], rows: int) -> None:
    name = _find_id({name: some for name, some in values.items() if name not in found.roles})
    if name is None:
        return
    found.call("id", name)
    found.roles[name] = "id"
    some = [value for value in values[name] if type(value) in (str, int)]
    if repeated := len(some) - len(set(some)):
        found.doubts.append(f"{name}: {repeated:,} of {rows:,} rows have an id that was there before")


def _tracks(
    found: Guess,
    values: Mapping[str, Sequence[Any]],
    kinds: Mapping[str, str],
    contents: Sequence[Any],
    rows: Sequence[Mapping[str, Any]],
    one: bool = False,
) -> None:
    """Columns of spans, or the likeliest one; all have the names of the first one's fields."""
    likely = {name: k for k, name in enumerate(_SPANS)}
    columns = [name for name, kind in kinds.items() if kind == "objects" and name not in {*found.roles, "id"}]
    named: dict[str, str] | None = None
    for column in sorted(columns, key=lambda name: likely.get(name.lower(), len(likely))):
        some = [span for spans in values[column] for span in _objects(spans)]
        of_spans = {name: _kind(_there(some, name)) for name in dict.fromkeys(_names(some))}
        fields = _span_fields(of_spans)
        if fields is None:
            continue
        if named is not None and fields != named:
            found.doubts.append(f"{column}: its fields are not called like those of the first spans; annotate it later")
            continue
        track = MAIN_TRACK if named is None else column.removeprefix(SPANS_PREFIX)
        if name_problem(track) or (named is not None and track in (MAIN_TRACK, METADATA_TRACK)):
            found.doubts.append(f"{column}: {track!r} cannot name a track; name one (--column spans_TRACK={column})")
            continue
        named = fields
        found.call(column_of(track), column)
        found.roles[column] = f"spans of track {track}"
        for ours, theirs in fields.items():
            found.call(ours, theirs)
        if "scores" in fields:
            found.options.setdefault("scores", {})[track] = "f4"
        lists = [_objects(row.get(column)) for row in rows]
        own = _own_text(found, column, fields, of_spans, lists, contents)
        for name in of_spans.keys() - {*fields.values(), own}:
            found.add("ignore-column", f"{column}.{name}")
        labels = {type(label) for s in some for label in _listed(s.get(fields["concepts"]))}
        if str in labels:
            found.named.append(track)
        else:
            found.doubts.append(f"{column}: labels are numbers, which become ids of concepts without names")
        _look_at(found, column, fields, lists, contents)
        if one:
            return


def _objects(value: Any) -> list[dict[str, Any]]:
    return [one for one in value if type(one) is dict] if type(value) is list else []


def _listed(value: Any) -> Sequence[Any]:
    return value if isinstance(value, list) else [] if value is None else [value]


def _span_fields(kinds: Mapping[str, str]) -> dict[str, str] | None:
    """Ours -> theirs for the fields of spans; None where they are none."""
    found = {ours: _first(names, kinds, *fit) for ours, (names, fit) in _FIELDS.items()}
    fields = {ours: theirs for ours, theirs in found.items() if theirs is not None}
    if len(fields) < len(found):
        return None
    scores = _first(_SCORES, kinds, "number", "numbers", "integer", "integers")
    return fields | ({"scores": scores} if scores is not None else {})


def _unread(found: Guess, name: str, kind: str, values: Sequence[Any]) -> str:
    """Why a column is not what a build takes it for, or what its name or its fields suggest; empty if nothing does."""
    if kind == "none":
        return ""
    if name == "id":
        return "" if "id" in found.roles.values() else f"id: {_words(values)}, expected text or integers"
    nested = [value for value in values if isinstance(value, (list, dict))]
    some = [one for value in nested for one in (value if isinstance(value, list) else [value]) if type(one) is dict]
    fields = {field: _there(some, field) for field in dict.fromkeys(_names(some))}
    kinds = {field: _kind(held) for field, held in fields.items()}
    theirs = {ours: _first(names, kinds, *kinds.values()) for ours, (names, _) in _FIELDS.items()}
    likely = None not in (theirs["start"], theirs["end"]) or name.lower() in (*_SPANS, "tags", "concepts")
    if not (nested and likely) and not _of_spans(name):
        return ""
    if kind != "objects":
        return f"{name}: {_words(values)}, expected lists of objects with start, end and concepts"
    wrong = []
    for ours, (names, fit) in _FIELDS.items():
        expected = "names or ids" if ours == "concepts" else "integers"
        if (field := theirs[ours]) is None:
            wrong.append(f"no field is called {ours} or the like")
        elif _first(names, kinds, *fit) is None:
            wrong.append(f"{field} is {_words(fields[field])}, expected {expected}")
    return f"{name}: {'; '.join(wrong)}" if wrong else ""


def _of_spans(name: str) -> bool:
    """Whether a build takes a column of that name for spans."""
    return name == "spans" or name.startswith(SPANS_PREFIX)


def _own_text(
    found: Guess,
    column: str,
    fields: Mapping[str, str],
    kinds: Mapping[str, str],
    spans: Sequence[Sequence[Mapping[str, Any]]],
    contents: Sequence[Any],
) -> str | None:
    """The field with the texts of the spans, and what these say of the offsets.

    Of a name that is not usual only if most of the spans have such a text in some unit.
    """
    names = [name for name, kind in kinds.items() if kind == "text" and name not in fields.values()]
    names.sort(key=lambda name: [*_OWN, name].index(name))
    texts = [content if type(content) is str else "" for content in contents]
    for name in names:
        given = [
            (row, one[fields["start"]], one[fields["end"]], one[name])
            for row, some in enumerate(spans)
            for one in some
            if _sound(one, fields) and type(one.get(name)) is str
        ]
        fits = {unit: count_fitting(texts, given, unit) for unit in ("character", "utf16", "byte")}
        best = max(fits, key=lambda unit: fits[unit])
        if 2 * fits[best] <= len(given) and name not in OWN_TEXT:
            continue
        if name not in OWN_TEXT:
            found.call("surface", name)
        found.roles[f"{column}.{name}"] = OWN_TEXT_ROLE
        if fits[best] and best != "character":
            found.options["span-unit"] = best
            found.doubts.append(f"{column}: offsets are in {UNITS[best].plural}, by {name} of {len(given):,} spans")
        if any(texts) and fits[best] < len(given):
            wrong = f"{len(given) - fits[best]:,} of {len(given):,} spans have another text than {name}"
            found.doubts.append(f"{column}: {wrong}: correct them, or do not compare (ignore {column}.{name})")
        return name
    return None


def _sound(span: Mapping[str, Any], fields: Mapping[str, str]) -> bool:
    start, end = span.get(fields["start"]), span.get(fields["end"])
    return type(start) is int and type(end) is int and 0 <= start <= end


def _look_at(
    found: Guess,
    column: str,
    fields: Mapping[str, str],
    spans: Sequence[Sequence[Mapping[str, Any]]],
    contents: Sequence[Any],
) -> None:
    """Spans that overlap, are beyond their document, or lack a label."""
    wrong: Counter[str] = Counter()
    unit, overlapping = str(found.options.get("span-unit", "character")), 0
    for some, content in zip(spans, contents, strict=True):
        limit = None
        if isinstance(content, (str, list)):
            limit = lengths_in([content], unit)[0] if isinstance(content, str) else len(content)
        places: list[tuple[int, int]] = []
        for one in some:
            start: Any = one.get(fields["start"])
            end: Any = one.get(fields["end"])
            if None in (start, end, one.get(fields["concepts"])):
                wrong["lack start, end or label"] += 1
            elif not _sound(one, fields):
                wrong["have no offsets from 0, the start before the end"] += 1
            elif limit is not None and end > limit:
                wrong["are beyond their document"] += 1
            else:
                places.append((start, end))
        furthest = [0, *accumulate((end for _, end in sorted(places)), max)]
        over = sum(start < before for (start, _), before in zip(sorted(places), furthest, strict=False))
        wrong["overlap"] += over
        overlapping += over > 0
    total = sum(map(len, spans))
    for what, count in wrong.items():
        if count:
            found.doubts.append(f"{column}: {count:,} of {total:,} spans {what}")
    having = sum(map(bool, spans))
    # One row of many is more likely to be wrong than a reason for levels, which would be empty.
    if overlapping > (having >= _FEW) and overlapping >= having / 100:
        found.options["overlap"] = "levels"


def _alike(values: Sequence[Any], others: Sequence[Any]) -> bool:
    """Most of some lists are as long as others."""
    same = [type(a) is type(b) is list and len(a) == len(b) for a, b in zip(values, others, strict=False)]
    return sum(same) >= _MOST * max(len(values), len(others))


_MASKS = {
    "labels": "what is trained on, all but -100: a field loss_mask",
    "attention_mask": "padding, which is dropped",
}
_OTHER_MASKS = "completion_mask", "assistant_masks", "assistant_tokens_mask"


def _rest(found: Guess, name: str, kind: str, values: Mapping[str, Sequence[Any]], tokens: str | None) -> None:
    """A column of no other role: a field, metadata, or ignored."""
    if kind == "object" and (name == "metadata" or (name == "meta" and "metadata" not in values)):
        found.call("metadata", name)
        found.roles[name] = "metadata"
        return
    numbers = kind in ("integers", "numbers") and tokens is not None
    if numbers and name in _MASKS:
        found.roles[name] = _MASKS[name]
        return
    if numbers and name in _OTHER_MASKS:
        found.doubts.append(f"{name}: if it says what is trained on, call it loss_mask, by which training goes")
    if numbers and not _of_spans(name) and _alike(values[name], values[str(tokens)]):
        flat = {item for value in values[name] if type(value) is list for item in value}
        code = "u1" if flat <= {0, 1} else "i4" if kind == "integers" else "f4"
        found.options.setdefault("field", {})[name] = code
        found.roles[name] = f"a number per token, {code}"
        return
    if unread := _unread(found, name, kind, values[name]):
        found.doubts.append(unread)
        found.add("ignore-column", name)
        found.roles[name] = "ignored"
        return
    taken = name == METADATA_TRACK or f"spans of track {name}" in found.roles.values()
    if kind == "number" and not name_problem(name) and not taken:
        found.options.setdefault("number", {})[name] = "f4"
        found.roles[name] = "a number per document, f4: to weigh and select by"
        return
    nested = any(isinstance(v, (list, dict)) for v in values[name])
    if kind in ("text", "integer", "number") or (kind == "other" and not nested):
        found.add("metadata-column", name)
        found.roles[name] = "metadata, to select by"
    else:
        found.add("ignore-column", name)
        found.roles[name] = "ignored"
    if kind == "none":
        found.doubts.append(f"{name}: no row has a value")
