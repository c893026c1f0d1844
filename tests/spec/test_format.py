"""The format as the page describes it, in JavaScript, against the golden datasets, any dataset, and damaged ones.

tests/format/spec_reader.py, the reader of the page in Python, is put to the same damage.
"""

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import xxhash
from hypothesis import given, settings
from hypothesis import strategies as st

import conceptloader as cl
from conceptloader.base.hashing import canonical_json
from conceptloader.errors import ConceptloaderError
from conceptloader.format.spec.jsonfile import seal
from tests.corpora.drawn import Corpus, corpora
from tests.format.golden_build import MEMBERS, SCORED, golden, recorded
from tests.format.spec_reader import Refused, SpecReader
from tests.spec.node import ask

IDS = ["greeting", "zürich", "", "nobody"]


def question(path: Path, ranges: list[tuple[int, int]]) -> tuple[str, Any]:
    return "dataset", {"path": str(path), "ranges": ranges, "ids": IDS}


def by_this_package(ds: cl.Dataset, start: int, stop: int) -> dict[str, Any]:
    """The answer for one range, from this package."""
    sample = ds.read(start, stop, sorted(ds.tracks), documents=True)
    documents = zip(sample["documents"].ids.tolist(), sample["documents"].first.tolist(), strict=True)
    spans = {}
    for track in ds.tracks:
        found = sample[track]
        columns = [column.tolist() for column in (found.start, found.end, found.begins_before, found.ends_after)]
        spans[track] = [list(row) for row in zip(*columns, (bytes(r).hex() for r in found.records), strict=True)]
    return {
        "tokens": sample["tokens"].tolist(),
        "fields": {name: sample[name].tobytes().hex() for name in ds.field_names},
        "documents": [list(pair) for pair in documents if pair[0] >= 0],
        "spans": spans,
    }


def compare(ds: cl.Dataset, ranges: list[tuple[int, int]], answer: dict[str, Any]) -> None:
    assert answer["tokens"] == ds.num_tokens
    assert answer["stream_fingerprint"] == ds.stream_fingerprint
    assert answer["tracks_fingerprint"] == ds.tracks_fingerprint
    assert answer["ranges"] == [by_this_package(ds, start, stop) for start, stop in ranges]


def test_the_golden_datasets() -> None:
    root = golden()
    opened = [cl.open_dataset(root / member) for member in MEMBERS]
    n = [ds.num_tokens for ds in opened]
    everything = [[(a, b) for a in range(tokens) for b in range(a + 1, tokens + 1)] for tokens in n]
    everything = [ranges[::7] for ranges in everything]
    answers = ask(*(question(root / member, ranges) for member, ranges in zip(MEMBERS, everything, strict=True)))
    for member, ds, ranges, answer in zip(MEMBERS, opened, everything, answers, strict=True):
        compare(ds, ranges, answer)
        assert len(ranges) > 40
        assert answer["stream_fingerprint"] == recorded()["stream_fingerprint"][member]
        assert answer["tracks_fingerprint"] == recorded()["tracks_fingerprint"][member]
        assert answer["checksums"] > 40
        assert answer["found"] == [ds.find_document(id) for id in IDS]
        assert answer["found"][1] == ([2, 6] if member == "joined" else [2])


def test_scores_groups_and_details(tmp_path: Path) -> None:
    ds, ranges = cl.open_dataset(golden() / SCORED), [(a, a + 5) for a in range(13)]
    [answer] = ask(question(golden() / SCORED, ranges))
    compare(ds, ranges, answer)
    assert answer["checksums"] > 12
    damage: dict[str, Callable[[Manifest], Any]] = {
        "ids of another type": lambda m: m["tracks"]["sure"].update(parameters={"ids": "u8"}),
        "groups that do not fit": lambda m: m["tracks"]["kinds"]["vocabulary"].update(groups=[["open", 3]]),
        "a group twice": lambda m: m["tracks"]["kinds"]["vocabulary"].update(groups=[["open", 3], ["open", 1]]),
        "size of details": lambda m: m["tracks"]["kinds"]["vocabulary"]["details"].update(size=3),
    }
    paths = [Path(shutil.copytree(golden() / SCORED, tmp_path / str(k) / "ds")) for k in range(len(damage))]
    for path, change in zip(paths, damage.values(), strict=True):
        edit(change)(path)
        with pytest.raises(ConceptloaderError):
            read_whole(path)
    assert ["refused" in answer for answer in ask(*(question(path, [(0, 5)]) for path in paths))] == [True] * len(paths)


@settings(max_examples=8)
@given(st.lists(st.tuples(corpora(), st.sampled_from(["dense", "spans"]), st.integers(1, 5)), min_size=1, max_size=6))
def test_any_dataset(tmp_path_factory: pytest.TempPathFactory, cases: list[tuple[Corpus, str, int]]) -> None:
    root = tmp_path_factory.mktemp("spec")
    written = [corpus.write(root / str(k), encoding, block) for k, (corpus, encoding, block) in enumerate(cases)]
    ranges = [[(a, a + size) for size in (1, 3, n) for a in range(0, n + 1 - size, size)] for n in map(len_of, written)]
    answers = ask(*(question(Path(ds.path), wanted) for ds, wanted in zip(written, ranges, strict=True)))
    for ds, wanted, answer in zip(written, ranges, answers, strict=True):
        compare(ds, wanted, answer)


def len_of(ds: cl.Dataset) -> int:
    return ds.num_tokens


SCALARS = st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text()
VALUES = st.recursive(SCALARS, lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner), max_leaves=5)


@settings(max_examples=20)
@given(st.lists(VALUES, max_size=20))
def test_the_text_that_fingerprints_are_made_of(values: list[Any]) -> None:
    special = [
        0.0,
        -0.0,
        1.0,
        1e-4,
        9.9e-5,
        1e-5,
        1e15,
        1e16,
        1.5e16,
        123456.789,
        5e-324,
        1.7976931348623157e308,
        "\x7f\x1f𝄞é",
    ]
    texts = [json.dumps(value) for value in [*values, *special, {"𝄞": 1, "\uffff": 2, "a": 3}]]
    answers = ask(*(("canonical", text) for text in [*texts, "-0", "[1E2,1.0,1]"]))
    assert answers == [*(canonical_json(json.loads(text)) for text in texts), "0", "[100.0,1.0,1]"]


def test_hashes_of_any_length() -> None:
    data = [bytes((7 * i + n) % 251 for i in range(n)) for n in [*range(260), 511, 512, 1024, 1025, 2048, 2049, 5000]]
    for block, (xxh3, _, _) in zip(data, ask(*(("hashes", block.hex()) for block in data)), strict=True):
        assert xxh3 == xxhash.xxh3_64_intdigest(block)


Manifest = dict[str, Any]
Damage = Callable[[Path], None]


def edit(change: Callable[[Manifest], Any]) -> Damage:
    """Change the manifest, and seal it again."""

    def damage(path: Path) -> None:
        value = json.loads((path / "manifest.json").read_text())
        del value["checksum"]
        change(value)
        reseal(path, json.dumps(value)[:-1])

    return damage


def reseal(path: Path, text: str) -> None:
    """Write a manifest, whose object is still open."""
    (path / "manifest.json").write_bytes(seal(text.encode("ascii")))


def substitute(old: str, new: str) -> Damage:
    """Change the text of the manifest, and seal it again."""

    def damage(path: Path) -> None:
        text = (path / "manifest.json").read_text()[:-36]
        assert old in text
        reseal(path, text.replace(old, new, 1))

    return damage


def flip(name: str, at: int = -1) -> Damage:
    """Change one byte of a file."""

    def damage(path: Path) -> None:
        data = bytearray((path / name).read_bytes())
        data[at] ^= 1
        (path / name).write_bytes(data)

    return damage


def cut(path: Path) -> None:
    (path / "00000.stream.bin").write_bytes((path / "00000.stream.bin").read_bytes()[:-1])


def link_outside(path: Path) -> None:
    file = path / "00000.stream.bin"
    outside = path.parents[1] / "outside"
    shutil.move(file, outside)
    file.symlink_to(outside)


def own_path(manifest: Manifest) -> None:
    manifest["shards"]["path"][0] = "../../elsewhere/00000"


DAMAGE: dict[str, Damage] = {
    "seal: a digit of a number": flip("manifest.json", 200),
    "seal: its own digits": flip("manifest.json", -5),
    "seal: cut off": lambda path: (path / "manifest.json").write_bytes((path / "manifest.json").read_bytes()[:-1]),
    "repeated key": substitute('"num_shards": 3', '"num_shards": 3, "num_shards": 3'),
    "repeated key below": substitute('"max_items":2', '"max_items":2,"max_items":2'),
    "unknown key": edit(lambda m: m.update(colour="red")),
    "unknown key of the tokenizer": edit(lambda m: m["tokenizer"].update(colour="red")),
    "unknown key of a track": edit(lambda m: m["tracks"]["quality"].update(colour="red")),
    "unknown key of a vocabulary": edit(lambda m: m["tracks"]["concepts"]["vocabulary"].update(colour="red")),
    "unknown key of the shards": edit(lambda m: m["shards"].update(colour=[0, 0, 0])),
    "unknown kind of a file": edit(
        lambda m: m["shards"]["files"].update({"x.bin": m["shards"]["files"]["stream.bin"]})
    ),
    "unknown key of a kind": edit(lambda m: m["shards"]["files"]["stream.bin"].update(colour=[0, 0, 0])),
    "unknown key of a track's column": edit(lambda m: m["shards"]["tracks"]["quality"].update(colour=[0, 0, 0])),
    "unknown track": edit(lambda m: m["shards"]["tracks"].update(other=m["shards"]["tracks"]["quality"])),
    "another format": edit(lambda m: m.update(format="conceptdream")),
    "another version": edit(lambda m: m.update(version=2)),
    "a wrong sample": edit(lambda m: m["shards"]["files"]["stream.bin"]["sample"].__setitem__(0, "0" * 16)),
    "a file without a sample": edit(lambda m: m["shards"]["files"]["stream.bin"]["sample"].__setitem__(0, None)),
    "num_tokens": edit(lambda m: m.update(num_tokens=26)),
    "num_documents": edit(lambda m: m.update(num_documents=5)),
    "size of a stream": edit(lambda m: m["shards"]["files"]["stream.bin"]["size"].__setitem__(0, 76)),
    "size of documents": edit(lambda m: m["shards"]["documents"].__setitem__(slice(0, 2), [2, 1])),
    "size of an index": edit(lambda m: m["shards"]["tracks"]["concepts"]["records"].__setitem__(0, 5)),
    "size of spans": edit(lambda m: m["shards"]["tracks"]["concepts"]["entries"].__setitem__(0, 8)),
    "a file that is shorter": cut,
    "a file that is missing": lambda path: (path / "00000.stream.bin").unlink(),
    "a path that leads outside": edit(own_path),
    "a link that leads outside": link_outside,
    "checksum of a file": flip("00000.concepts.data"),
    "checksum of a vocabulary": flip("concepts.vocabulary.json", 3),
}
MANDATORY = {
    "": "mode created_by num_shards num_tokens num_documents block_tokens layouts tracks shards",
    "tracks/quality": "codec parameters max_spans",
    "tracks/concepts/vocabulary": "path size checksum count",
    "tokenizer": "name vocab_size",
    "shards": "path tokens documents layout offset token_checksum tracks files",
    "shards/tracks/quality": "encoding records entries",
    "shards/files": "stream.bin",
    "shards/files/stream.bin": "size checksum sample",
}
OTHERS = {"": "tokenizer extra", "tracks/quality": "vocabulary max_items", "tokenizer": "eos_id"}


def without(where: str, key: str) -> Damage:
    def change(manifest: Manifest) -> None:
        for part in filter(None, where.split("/")):
            manifest = manifest[part]
        del manifest[key]

    return edit(change)


for where, keys in MANDATORY.items():
    DAMAGE.update({f"no {where}/{key}": without(where, key) for key in keys.split()})


def copied(tmp_path: Path, name: str) -> Path:
    """A golden dataset, two folders below one that a reader may not look into."""
    return Path(shutil.copytree(golden() / "stream", tmp_path / name / "datasets" / "ds"))


def read_whole(path: Path) -> None:
    """All checksums and all tokens, by this package."""
    with cl.open_dataset(path) as ds:
        ds.read(0, ds.num_tokens, sorted(ds.tracks), documents=True)
    if problems := cl.verify(path, full=True):
        raise ConceptloaderError(str(problems))


def read_by_page(path: Path) -> None:
    """The same by the reader of the page in Python."""
    reader = SpecReader(path)
    reader.field("token", 0, 25)
    reader.check_files()
    reader.check_samples()


def test_the_readers_of_the_page_refuse_what_this_package_refuses(tmp_path: Path) -> None:
    paths = [copied(tmp_path, str(number)) for number in range(len(DAMAGE))]
    read_whole(paths[0])
    read_by_page(paths[0])
    for path, (what, damage) in zip(paths, DAMAGE.items(), strict=True):
        damage(path)
        for read in (read_whole, read_by_page):
            try:
                read(path)
            except (ConceptloaderError, Refused, FileNotFoundError):
                continue
            raise AssertionError(f"{read.__name__} does not notice: {what}")
    answers = ask(*(question(path, [(0, 25)]) for path in paths))
    assert {what: "refused" in answer for what, answer in zip(DAMAGE, answers, strict=True)} == dict.fromkeys(
        DAMAGE, True
    )


def test_and_read_what_leaves_out_a_key_that_is_not_mandatory(tmp_path: Path) -> None:
    paths = []
    for where, keys in OTHERS.items():
        for key in keys.split():
            path = copied(tmp_path, f"{where}{key}".replace("/", "_"))
            without(where, key)(path)
            read_whole(path)
            assert SpecReader(path).field("token", 0, 25) == cl.open_dataset(path).tokens(0, 25).tolist()
            paths.append(path)
    for path, answer in zip(paths, ask(*(question(path, [(0, 25)]) for path in paths)), strict=True):
        compare(cl.open_dataset(path), [(0, 25)], answer)


def test_the_sample_of_a_large_file(tmp_path: Path) -> None:
    options = cl.BuildOptions(tokenizer=cl.Tokenizer(name="test", vocab_size=256))
    build = cl.create_writer(tmp_path / "ds", options, plan=[0])
    with build.shard(0) as shard:
        shard.add_document([(i * i) % 251 for i in range(70_000)])
    cl.finalize(tmp_path / "ds")
    ds = cl.open_dataset(tmp_path / "ds")
    (answer,) = ask(question(tmp_path / "ds", [(0, 9)]))
    compare(ds, [(0, 9)], answer)
    sizes = json.loads((tmp_path / "ds" / "manifest.json").read_text())["shards"]["files"]
    assert sizes["stream.bin"]["size"][0] > 32768
    assert answer["checksums"] > len(sizes) + 1


def test_a_foreign_file_that_was_touched_is_refused(tmp_path: Path) -> None:
    path = copied(tmp_path, "foreign")
    found = (path / "00000.stream.bin").stat().st_mtime_ns

    def adopt(shift: int) -> Damage:
        entry = {"kind": "flat", "mtime_ns": found + shift}
        return edit(lambda m: m["shards"].update(foreign=[entry, None, None]))

    adopt(0)(path)
    other = Path(shutil.copytree(path, tmp_path / "other" / "datasets" / "ds"))
    adopt(1)(other)
    same, touched = ask(question(path, [(0, 25)]), question(other, [(0, 25)]))
    assert "refused" not in same
    assert "time of modification" in touched["refused"]
    assert SpecReader(path).field("token", 0, 25) == same["ranges"][0]["tokens"]
    with pytest.raises(Refused, match="was modified"):
        SpecReader(other).field("token", 0, 25)
