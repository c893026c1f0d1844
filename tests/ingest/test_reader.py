"""Random odd rows: `build` with spans, `build` and then `annotate`, and a plain reader of the pages agree."""

import json
import unicodedata
from itertools import accumulate

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from hypothesis import given, settings
from hypothesis import strategies as st

import conceptloader as cl
from conceptloader.errors import ConceptloaderError
from conceptloader.ingest.align.rules import ALIGNS, OVERLAPS
from tests.corpora.records import NAMES
from tests.corpora.tokenizers import END, definition
from tests.ingest.test_align import belongs, characters_of, library

WIDTH = {
    "character": len, "utf16": lambda one: len(one.encode("utf-16-le")) // 2, "byte": lambda one: len(one.encode()),
}  # fmt: skip
PIECES = ["red", " ", "the", "cat", "\n", "größe", "😀", "e\u0301", "日本", "\u3000", "x"]
TRACKS = {"concepts": ("spans", NAMES), "topic": ("spans_topic", None)}


@st.composite
def rows(draw, tokenized, unit, scored, odd):
    """Documents; one of `odd` values is another one, or missing, none for 0."""
    values = [None, 1, 1.5, True, "a", "\ud800", 1 << 64, -1, [], [1], ["a"], {}, {"a": 1}, 1 << 62, 1e300, "animal", 0]

    def maybe(value):
        return draw(st.sampled_from(values)) if odd and draw(st.integers(1, odd)) == odd else value

    def spans(text, names):
        at = [0, *accumulate(map(WIDTH[unit], text))] if isinstance(text, str) else [*range(len(text) + 1)]
        found = []
        for _ in range(draw(st.integers(0, 3))):
            a, b = sorted(draw(st.tuples(*[st.integers(0, len(text))] * 2)))
            some = draw(st.lists(st.sampled_from(names), max_size=3))
            span = {"start": maybe(at[a]), "end": maybe(at[b]), "concepts": maybe([*map(maybe, some)])}
            if scored:
                span["scores"] = maybe([maybe(k / 4) for k in range(len(some))])
            if isinstance(text, str) and draw(st.booleans()):
                span["text"] = draw(st.sampled_from([text[a:b], text[a:b].upper(), None])) if maybe(1) else "zz"
            if maybe(1) is None:
                del span[draw(st.sampled_from([*span]))]
            found.append(maybe(span))
        return found

    result = []
    for k in range(draw(st.integers(1, 6))):
        ids = draw(st.lists(st.integers(0, 299), max_size=9))
        content = ids if tokenized else "".join(draw(st.lists(st.sampled_from(PIECES), max_size=9)))
        row = {"id": maybe(draw(st.sampled_from([f"d{k}", "same", k]))), "n": maybe(k), "q": maybe(k / 2)}
        row |= {"tokens": maybe([*map(maybe, ids)]), "w": maybe([maybe(k % 3) for k in ids])} if tokenized else {}
        row |= {} if tokenized else {"text": maybe(content)}
        row |= {"spans": maybe(spans(content, NAMES)), "spans_topic": maybe(spans(content, [0, 7, (1 << 32) - 1]))}
        row |= {"metadata": maybe({"source": "web", "k": maybe(k)})}
        if draw(st.booleans()):
            del row[draw(st.sampled_from(["id", "n", "q", "spans", "spans_topic", "metadata"]))]
        result.append(row | ({"other": 1} if odd and draw(st.integers(1, 9 * odd)) == 1 else {}))
    return result


class Wrong(Exception):
    """A row that a build refuses."""


def need(right):
    if not right:
        raise Wrong


def is_text(value):
    return type(value) is str and not any("\ud800" <= one < "\ue000" for one in value)


def is_number(value):
    """Integers are read as those of 64 bits, as everywhere."""
    return type(value) in (int, float) and abs(value) < (3.5e38 if type(value) is float else 1 << 64)


def integers(values, limit):
    need(type(values) is list and all(type(one) is int and 0 <= one < limit for one in values))
    return values


def folded(text):
    return " ".join(unicodedata.normalize("NFKC", text).casefold().split())


def read(row, setup):
    """(tokens, of each the records by track, counts of spans and of those that are lost). Raises: Wrong."""
    text, unit = row.get("text"), setup["unit"]
    need(row.keys() <= {"id", "tokens", "text", "w", "q", "n", "spans", "spans_topic", "metadata"})
    name, metadata, number = row.get("id"), row.get("metadata"), row.get("q")
    need(name is None or type(name) is int or is_text(name))
    need(metadata is None or type(metadata) is dict)
    need(number is None or is_number(number))
    if not setup["family"]:
        tokens = [(one, [k]) for k, one in enumerate(integers(row.get("tokens"), 300))]
        weights = [] if row.get("w") is None else row["w"]
        need(type(weights) is list and len(weights) == len(tokens))
        need({*map(type, weights)} <= {int, float} or {*map(type, weights)} == {bool})
        need(all(one in range(256) for one in weights))
        borders = [*range(len(tokens) + 1)]
    else:
        need(is_text(text))
        letters = [(one, [k]) for k, letter in enumerate(text) for one in letter.encode()]
        tokens = letters if setup["family"] == "bytes" else characters_of(setup["family"], text)
        weights, borders = [0] * len(tokens), [0, *accumulate(map(WIDTH[unit], text))]
    ids, counts = [one for one, _ in tokens] + [setup["eos"]] * setup["append"], {}
    held = [{} for _ in ids]
    for track, (column, names) in TRACKS.items():
        places = []
        given = [] if row.get(column) is None else row[column]
        need(type(given) is list and all(type(span) is dict for span in given))
        wanted = {"start", "end", "concepts", *(["scores"] if setup["scored"] and track == "concepts" else [])}
        kinds = set()
        for span in given:
            need(wanted <= span.keys() <= wanted | {"text"})
            need(type(span["start"]) is int and type(span["end"]) is int and span["start"] <= span["end"])
            need(span["start"] in borders and span["end"] in borders)
            start, end, concepts = borders.index(span["start"]), borders.index(span["end"]), span["concepts"]
            need(type(concepts) is list)
            kinds |= {*map(type, concepts)}
            need(len(kinds) < 2)
            concepts = [names.index(one) if names and one in names and type(one) is str else one for one in concepts]
            record = [*integers(concepts, len(names) if names else 1 << 32)]
            scores = span.get("scores") if "scores" in wanted else None
            if "scores" in wanted:
                need(type(scores) is list and len(scores) == len(record) and all(map(is_number, scores)))
            if (own := span.get("text")) is not None:
                need(is_text(own) and text is not None)
                need(folded(str(text)[start:end]) == folded(own))
            inside = [k for k, (_, at) in enumerate(tokens) if belongs(setup["align"], at, start, end)]
            places.append((inside, [[*pair] for pair in zip(record, scores or [0] * len(record), strict=True)]))
        counts[track] = (len(places), sum(not inside for inside, _ in places))
        for k, there in enumerate(held):
            over = [record for inside, record in places if k in inside]
            need(len(over) < 2 or setup["overlap"] != "error")
            need(len(over) <= 2 or setup["overlap"] != "levels")
            if setup["overlap"] == "union" and over:
                pairs = [pair for record in over for pair in record]
                over = [sorted([one, max(score for c, score in pairs if c == one)] for one in {c for c, _ in pairs})]
            there[track] = sorted(over)
    extra = {"n": row["n"]} if "n" in row else {}
    for there in held:
        there["metadata"] = [{**(metadata or {}), **extra}]
        there["q"] = [] if number is None else [[float(np.float32(number))]]
    padded = [float(one) for one in weights] + [float(weights[-1]) if weights else 0.0] * setup["append"]
    return ids, held, {**counts, "w": padded, "id": None if name in (None, "") else str(name)}


def records(ds, scored):
    """Of each token by track, those of its levels together."""
    held = [{} for _ in range(ds.num_tokens)]
    for track in ds.tracks:
        spans, name = ds.spans(track, 0, ds.num_tokens), track.partition("_level")[0]
        found = [one.tolist() if isinstance(one, np.ndarray) else one for one in spans.decode()]
        if name in TRACKS:
            cuts = spans.offsets[1:-1]
            has_scores = scored and name == "concepts"
            scores = np.split(spans.scores, cuts) if has_scores else [[0.0] * len(one) for one in found]
            found = [[[c, float(s)] for c, s in zip(*pair, strict=True)] for pair in zip(found, scores, strict=False)]
        for there in held:
            there.setdefault(name, [])
        for start, end, record in zip(spans.start.tolist(), spans.end.tolist(), found, strict=True):
            for k in range(start, end):
                held[k][name] = sorted([*held[k][name], record], key=json.dumps if name == "metadata" else None)
    return held


def write(folder, found, parquet, damage=None):
    """A file, and its rows with their places: of what a table cannot hold, lines, some of them damaged (None)."""
    if parquet:
        try:
            names = dict.fromkeys(name for row in found for name in row)
            table = pa.Table.from_pylist([{name: row.get(name) for name in names} for row in found])
            pq.write_table(table, folder / "in.parquet", row_group_size=2)
            return folder / "in.parquet", [(f"row {k}", row) for k, row in enumerate(table.to_pylist())]
        except (pa.ArrowException, ValueError, TypeError, OverflowError):
            pass
    lines, placed = [], []
    for row in found:
        line, how = json.dumps(row).encode(), damage.draw(st.integers(0, 20)) if damage else 0
        if how == 1:
            line = line[: damage.draw(st.integers(1, len(line) - 1))] if damage else line
        elif how == 2:
            line = line[:-1] + b', "metadata": 1, "metadata": 2}'
        elif how == 3:
            lines.append(b" ")
        lines.append(line.replace(b"\\ud800", b"\xff") if how == 4 else line)
        broken = how in (1, 2) or (how == 4 and b"\\ud800" in line)
        placed.append((f"line {len(lines)}", None if broken else row))
    lines += [b""] * any(row is None for _, row in placed)  # a line without an end is looked at alone
    (folder / "in.jsonl").write_bytes(b"\n".join(lines))
    return folder / "in.jsonl", placed


@settings(max_examples=100)
@given(st.data(), st.booleans(), st.booleans(), st.sampled_from([0, 30, 100]))
def test_three_ways_agree(tmp_path_factory, data, tokenized, parquet, odd):
    folder = tmp_path_factory.mktemp("run")

    def draw(*some):
        return data.draw(st.sampled_from(some))

    content, family = ("tokens", "") if tokenized else ("text", draw("bytes", "byte-level", "llama"))
    rules = {"align": draw(*ALIGNS), "overlap": draw(*OVERLAPS)}
    rules |= {"levels": 2, "max_unaligned_spans": 1.0}
    setup = {**rules, "unit": "token" if tokenized else draw(*WIDTH), "append": draw(True, False)}
    setup |= {"scored": draw(True, False, False), "family": family}
    given = {"vocab_size": 300, "eos": 299} if tokenized else {"tokenizer": "bytes"}
    setup["eos"] = 299 if tokenized else 256
    if family not in ("", "bytes"):
        (folder / "tokenizer.json").write_bytes(definition(family))
        given = {"tokenizer": str(folder / "tokenizer.json"), "eos": END}
        setup["eos"] = library(family).token_to_id(END)
    found = data.draw(rows(tokenized, "character" if tokenized else setup["unit"], setup["scored"], odd))
    for row in found:  # scores are of one track
        for span in topics if type(topics := row.get("spans_topic")) is list else ():
            span.pop("scores", None) if type(span) is dict else None
    path, placed = write(folder, found, parquet, data if odd else None)
    options = {**given, **rules, "no_eos": not setup["append"], "span_unit": setup["unit"]}
    options |= {"column": {name: name for name in (content, "spans", "spans_topic", "metadata")}}
    options |= {"metadata_column": ["n"], "number": {"q": "f4"}, "vocabulary": {"concepts": NAMES}}
    options |= {"field": {"w": "u1"} if tokenized else {}, "scores": {"concepts": "f4"} if setup["scored"] else {}}
    wrong, right = [], []
    for where, row in placed:
        try:
            need(row is not None)
            right.append((row, read(row, setup)))
        except Wrong:
            wrong.append(where)
    bad = {}
    try:
        made = cl.build(path, folder / "built", on_bad=lambda _, *what: bad.update([what]), **options)
    except ConceptloaderError:
        assert not any(ids for _, (ids, _, _) in right) or (wrong and path.suffix == ".parquet")  # a type of a column
        return
    assert [*bad] == wrong, bad
    with cl.open_dataset(folder / "built") as ds:
        assert ds.num_documents == len(right)
        assert ds.tokens(0, ds.num_tokens).tolist() == [one for _, (ids, _, _) in right for one in ids]
        assert [ds.document_id(k) for k in range(len(right))] == [facts["id"] for _, (_, _, facts) in right]
        expected = [there for _, (_, held, _) in right for there in held]
        assert records(ds, setup["scored"]) == expected
        if tokenized:
            assert ds.read(0, ds.num_tokens)["w"].tolist() == [one for _, (_, _, facts) in right for one in facts["w"]]
    for track in TRACKS:
        counts = [sum(facts[track][k] for _, (_, _, facts) in right) for k in (0, 1)]
        loss = made.losses.get(track)
        assert [0, 0] if loss is None else [loss.spans, loss.lost] == counts
    bare = [{key: row[key] for key in ("id", content) if key in row} for row, _ in right]
    whole = [[one for one in row.get("spans") or [] if one["start"] < one["end"]] for row, _ in right]
    notes = [{"document": k, "spans": spans} for k, spans in enumerate(whole)]
    if family == "llama" or not any(note["spans"] for note in notes):
        return
    source, _ = write(folder, bare, False)
    cl.build(source, folder / "bare", **given, no_eos=not setup["append"])
    (folder / "more").mkdir()
    source, _ = write(folder / "more", data.draw(st.permutations(notes)), parquet)
    cl.annotate(
        folder / "bare", [source], folder / "annotated",
        track="concepts", vocabulary=NAMES, span_unit=setup["unit"], **rules,
        parameters={"ids": "u2", "scores": "f4"} if setup["scored"] else None,
    )  # fmt: skip
    with cl.open_dataset(folder / "annotated") as ds:
        assert records(ds, setup["scored"]) == [{"concepts": there["concepts"]} for there in expected]
