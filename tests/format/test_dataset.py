"""Any dataset, written and read in every way: against brute force, against the reader of the specification, damaged."""

import contextlib
import os
from itertools import accumulate, pairwise
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import conceptloader as cl
from conceptloader.errors import ConceptloaderError, ConfigError, FormatError
from conceptloader.format.tools.stats import dataset_stats
from conceptloader.format.write import ladder, shard, tables
from conceptloader.format.write.ladder import count_spans
from conceptloader.trace.subset import SubsetOptions, make_subsets
from tests.corpora.drawn import Corpus, corpora, runs
from tests.format.golden_build import compare, compare_values
from tests.oracle.data import read

ENCODINGS = st.sampled_from(["dense", "spans", "auto"])
CORPORA = st.sampled_from([("concepts", "source"), ("source",), ()]).flatmap(lambda tracks: corpora(3, tracks))
MEMBERS = st.lists(st.tuples(CORPORA, ENCODINGS, st.sampled_from(["u2", "u4"])), min_size=1, max_size=2)


def check_everything(ds, corpus, data, seq_len):
    """What was put in is in the files, and comes out by windows and by documents."""
    documents = [document for shard in corpus.shards for document in shard.documents]
    borders = [0, *accumulate(len(document.tokens) for document in documents)]
    tokens = corpus.tokens()
    assert data.tokens.tolist() == tokens
    assert data.fields["weight"].tolist() == [token / 2 for token in tokens]
    assert data.documents == [*pairwise(borders)]
    assert data.ids == [document.id for document in documents]
    assert data.spans == {track: runs(corpus, track) for track in corpus.tracks}
    windows = ds.windows(seq_len)
    assert (ds.num_tokens, len(windows)) == (len(tokens), (len(tokens) - 1) // seq_len)
    for i in range(len(windows)):
        assert windows.token_range(i) == (i * seq_len, (i + 1) * seq_len + 1)
        assert windows[i]["tokens"].tolist() == tokens[i * seq_len : (i + 1) * seq_len + 1]
    assert len(ds.documents()) == ds.num_documents == len(documents)
    for number, document in enumerate(documents):
        assert ds.document_range(number) == (borders[number], borders[number + 1])
        assert (ds.document_id(number) or "") == document.id
        assert ds.documents()[number]["tokens"].tolist() == document.tokens


def check_claims(ds, data):
    """The largest number of spans is exact for 2**k tokens, across the borders of shards and of members."""
    for name, spans in data.spans.items():
        for length in range(1, ds.num_tokens + 1):
            starts = range(ds.num_tokens - length + 1)
            most = max(sum(span.start < t + length and span.end > t for span in spans) for t in starts)
            found = ds.tracks[name].spans_in(length)
            assert found == most if length & (length - 1) == 0 else found >= most
        held = max((len(span.record) // 4 for span in spans), default=0)
        assert (ds.tracks[name].max_items or 0) >= held


@settings(max_examples=40)
@given(MEMBERS, st.sampled_from([1, 2, 3, 8, 2048]), st.integers(1, 9), st.data())
def test_any_dataset(
    tmp_path_factory,
    members,
    block_tokens,
    piece,
    data,
):
    root = tmp_path_factory.mktemp("any")
    with pytest.MonkeyPatch.context() as patch:  # wherever the pieces end in which a writer writes
        patch.setattr(tables, "_CHUNK", piece)
        patch.setattr(tables, "_SORT_LIMIT", piece)
        patch.setattr(shard, "_CHUNK_TOKENS", piece)
        for number, (corpus, encoding, token_type) in enumerate(members):
            corpus.write(root / f"{number}", encoding, block_tokens, token_type).close()
    path = root / "0"
    if len(members) > 1:
        path = root / "joined"
        cl.concat([root / f"{number}" for number in range(len(members))], path)
        assert os.listdir(path) == ["manifest.json"]
    tracks = sorted({track for corpus, *_ in members for track in corpus.tracks})  # also those that one of them has
    whole = Corpus(tracks, [shard for corpus, *_ in members for shard in corpus.shards])
    with cl.open_dataset(path) as ds:
        n, written = ds.num_tokens, read(path)
        check_everything(ds, whole, written, data.draw(st.integers(1, n - 1), "seq_len"))
        check_claims(ds, written)
    parts = st.sets(st.integers(0, n), min_size=2, max_size=2).map(sorted).map(tuple)
    compare(path, [*data.draw(st.lists(parts, max_size=5)), (0, n)])
    with pytest.MonkeyPatch.context() as patch:  # wherever the pieces end in which verify counts
        patch.setattr(ladder, "PIECE", piece)
        patch.setattr(ladder, "_RECORDS", 2)
        assert cl.verify(path, full=True, threads=2) == []
    assert cl.verify(path) == []
    check_view(path, root / "view", f"document % {data.draw(st.integers(1, 3))} = 0")


def check_view(path, view, where):
    """What a view reads is what its documents are in the source."""
    with contextlib.suppress(ConfigError):  # of no document
        make_subsets(path, view, SubsetOptions(where=where))
        ours, data = cl.open_dataset(view), read(view)
        n, stats = ours.num_tokens, dataset_stats(ours)["tracks"]
        for track, spans in data.spans.items():
            assert count_spans(ours, track) == list(ours.tracks[track].max_spans)
            assert stats[track]["spans"] == len(spans)
            assert stats[track]["tokens_in_spans"] == sum(span.end - span.start for span in spans) / n
        compare_values(ours, data, [(0, n), (n // 3, n), (n // 3, n // 2 + 1)])


def changed(path, data, kinds, change):
    """The file that was changed, and what was in it."""
    files = [file for file in sorted(path.iterdir()) if kinds(file.name) and file.stat().st_size]
    file = data.draw(st.sampled_from(files))
    before = file.read_bytes()
    content = bytearray(before)
    change(content)
    file.write_bytes(content)
    return file, before


@settings(max_examples=60)
@given(corpora(), ENCODINGS, st.data())
def test_any_damage(tmp_path_factory, corpus, encoding, data):
    """A flipped bit is found by the full check. What else is wrong in a table is an error when it is read or does no
    harm: another exception is none, and tokens do not differ where their file is sound."""
    path = tmp_path_factory.mktemp("damaged") / "ds"
    corpus.write(path, encoding).close()

    def flip(content):
        content[data.draw(st.integers(0, len(content) - 1))] ^= 1 << data.draw(st.integers(0, 7))

    def overwrite(content):
        at, value = data.draw(st.integers(0, len(content) - 1)), data.draw(st.binary(min_size=1, max_size=8))
        content[at : at + len(value)] = value[: len(content) - at]

    tables, before = changed(
        path, data, lambda name: name[0] == "0" and name[6:12] not in ("stream", "shard."), overwrite
    )
    try:
        with cl.open_dataset(path, verify_files=False) as ds:
            assert ds.tokens(0, ds.num_tokens).tolist() == corpus.tokens()
            for sample in ds.windows(max(1, ds.num_tokens // 2)):
                for track in ds.tracks:
                    sample[track].decode()
            for number in range(ds.num_documents):
                ds.document_range(number)
                ds.find_document(ds.document_id(number) or "absent")
    except ConceptloaderError:
        pass
    tables.write_bytes(before)
    file, _ = changed(path, data, lambda name: name != "build.json" and not name.endswith(".shard.json"), flip)
    try:
        found = {Path(problem.file).name for problem in cl.verify(path, full=True)}
    except FormatError as error:
        found = {"manifest.json"} if "manifest.json" in error.path else set()
    assert file.name in found


@pytest.mark.parametrize("change", [None, lambda data: data[:-1], lambda data: data + b"\0"])
def test_every_missing_shorter_or_longer_file_is_found_by_the_quick_check(dataset, change):
    for file in Path(dataset.path).iterdir():
        content = file.read_bytes()
        if file.name.endswith(("build.json", ".shard.json")) or (change and change(content) == content):
            continue  # of interest to finalize only; and there is nothing shorter than an empty file
        file.write_bytes(change(content)) if change else file.unlink()
        try:
            assert file.name in [Path(problem.file).name for problem in cl.verify(dataset.path)]
        except FormatError:
            assert file.name == "manifest.json"
        file.write_bytes(content)
