"""A prefix rendered from the record in front of each document: what a build without it gives, moved by its tokens; and
dropping it again."""

import json
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from tokenizers import Tokenizer

import conceptloader as cl
from conceptloader.batch.open import open_reader
from conceptloader.cli import main
from conceptloader.errors import ConfigError, InputError
from conceptloader.ingest.annotate.annotate import annotate
from conceptloader.ingest.annotate.options import AnnotateOptions
from conceptloader.ingest.records.chat import ChatRules
from conceptloader.ingest.template import Prefix
from conceptloader.order.progress.runlog import History
from conceptloader.subset.views import SubsetOptions, make_subsets
from conceptloader.trace import Run, locate_document, trace_sample
from tests.corpora.chunked import make
from tests.corpora.records import content, in_characters, spans_of
from tests.corpora.records import write_rows as write
from tests.corpora.tokenizers import with_bos
from tests.raises import raises

TEXTS = ["the red cat sat on the mat", "", "größer als die 😀 Katze", "a", "and the blue bird saw it ."]
COUNT = 80
TEMPLATE = "{% if url is defined %}source {{ url }}, {{ metadata.k }}:\n{% endif %}"


def prefix_of(row: dict[str, Any]) -> str:
    return f"source {row['url']}, {row['metadata']['k']}:\n" if "url" in row else ""


def record(k: int) -> dict[str, Any]:
    """One document in five is empty, one in four has no prefix."""
    row = in_characters(k, TEXTS[k % 5])
    return row if k % 4 == 0 else {**row, "url": f"größe.org/{k}" if k % 4 == 1 else "cats.org"}


ROWS = [record(k) for k in range(COUNT)]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """in.jsonl; bare.jsonl without spans, which are in spans.jsonl; a tokenizer with a token <s>."""
    folder = tmp_path_factory.mktemp("prefix")
    with_bos().save(str(folder / "tokenizer.json"))
    write(folder / "in.jsonl", ROWS)
    write(folder / "bare.jsonl", [{key: row[key] for key in row if key != "spans"} for row in ROWS])
    write(folder / "spans.jsonl", [{"id": row["id"], **span} for row in ROWS for span in row["spans"]])
    return folder


def build(
    folder: Path, out: str, *options: str, source: str = "in.jsonl", template: str | None = TEMPLATE, status: int = 0
) -> Path:
    command = ["build", str(folder / source), "--out", str(folder / out), "--tokenizer", str(folder / "tokenizer.json")]
    command += ["--workers", "1", "--max-unaligned-spans", "1", *options]
    command += ["--ignore-column", "url", *([] if template is None else ["--prefix", template])]
    assert main(command) == status
    assert cl.verify(folder / out, full=True) == []
    return folder / out


@pytest.fixture(scope="module")
def built(folder: Path) -> Path:
    """`plain` without prefixes, `with`, and `view`, which drops them."""
    build(folder, "plain", template=None)
    build(folder, "with")
    drop(folder, "with", "view")
    return folder


def drop(folder: Path, source: str, out: str) -> None:
    ask = ["--spans", "not prefix:metadata"]
    assert main(["subset", str(folder / source), *ask, "--out", str(folder / out)]) == 0


@pytest.mark.parametrize(
    "more", [[], ["--no-eos"], ["--bos", "<s>"], ["--encoding", "dense"]], ids=lambda m: "".join(m)
)
def test_every_document_begins_with_its_own(folder: Path, more: list[str]) -> None:
    name = "".join(more)
    plain = cl.open_dataset(build(folder, f"plain{name}", *more, template=None))
    ds = cl.open_dataset(build(folder, f"with{name}", *more))
    tokenizer = Tokenizer.from_file(str(folder / "tokenizer.json"))
    for k, row in enumerate(ROWS):
        before = plain.documents()[k]["tokens"].tolist()
        own = tokenizer.encode(prefix_of(row), add_special_tokens=False).ids
        found = ds.documents()[k]
        assert found["tokens"].tolist() == own + before
        start, stop = ds.document_range(k)
        assert ds.fields(start, stop)["loss_mask"].tolist() == [0] * len(own) + [1] * len(before)
        for track in ("concepts", "metadata"):
            moved = [(a + len(own), b + len(own), record) for a, b, record in spans_of(plain, k, track)]
            assert spans_of(ds, k, track) == moved
        assert spans_of(ds, k, "prefix") == ([(0, len(own), "[0]")] if own else [])
    assert ds.vocabulary("prefix") == ["metadata"]


def test_from_parquet_and_python(built: Path, tmp_path: Path) -> None:
    """Rows of a table without a value are as records without the key."""
    pq.write_table(pa.Table.from_pylist(ROWS, pa.Table.from_pylist(ROWS[7:8]).schema), tmp_path / "in.parquet")
    cl.build(
        tmp_path / "in.parquet", tmp_path / "ds", tokenizer=str(built / "tokenizer.json"), prefix=TEMPLATE,
        rules=cl.writing.SpanAlignment(max_unaligned_spans=1),
    )  # fmt: skip
    found, wanted = content(tmp_path / "ds"), content(built / "with")
    different = {name for name in wanted if found.get(name) != wanted[name]}
    assert different <= {"build.json", "manifest.json", "00000.shard.json"}  # where the documents came from


@pytest.mark.parametrize("suffix", ["jsonl", "parquet"])
def test_it_may_name_the_spans(folder: Path, tmp_path: Path, suffix: str) -> None:
    pq.write_table(pa.Table.from_pylist(ROWS, pa.Table.from_pylist(ROWS[7:8]).schema), tmp_path / "in.parquet")
    source = folder / "in.jsonl" if suffix == "jsonl" else tmp_path / "in.parquet"
    columns = cl.writing.Columns(metadata="metadata", ignored=["url"])
    more: dict[str, Any] = {
        "columns": columns,
        "prefix": "{{ spans | length }}",
        "rules": cl.writing.SpanAlignment(max_unaligned_spans=1),
    }
    cl.build(source, tmp_path / "ds", tokenizer="bytes", **more)
    found = [bytes([document["tokens"][0]]) for document in cl.open_dataset(tmp_path / "ds").documents()]
    assert found == [str(len(row["spans"])).encode() for row in ROWS]


def test_interrupted_and_by_two_workers(folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    size = ("--shard-input-bytes", "1000")
    whole = build(folder, "whole", *size)
    shutil.copytree(whole, folder / "part")
    for name in ("manifest.json", "00002.shard.json", "00003.shard.json"):
        (folder / "part" / name).unlink()
    with cl.open_dataset(whole) as ds:
        first, stop = (ds.shard_starts[k] for k in (2, 4))
        again = int((ds.fields(first, stop)["loss_mask"] == 0).sum())
    capsys.readouterr()
    part = build(folder, "part", *size)
    assert f"{again:,} of the tokens written now are of prefixes, without a loss" in capsys.readouterr().out
    assert content(part) == content(whole)
    assert content(build(folder, "two", *size, "--workers", "2")) == content(whole)
    assert build(folder, "whole", *size, template="{{ id }}: ", status=2) == whole
    assert "found a complete dataset of other options (extra" in capsys.readouterr().err


@pytest.mark.parametrize("more", [[], ["--bos", "<s>"]], ids=["", "bos"])
def test_annotations_in_characters_and_of_whole_documents(built: Path, tmp_path: Path, more: list[str]) -> None:
    """Both are of the text: no span but its own holds a prefix."""
    wanted = cl.open_dataset(build(built, f"wanted{len(more)}", *more))
    bare = build(built, f"bare{len(more)}", *more, source="bare.jsonl")
    options = AnnotateOptions(track="concepts", span_unit="character", max_unaligned_spans=1)
    annotate(bare, [built / "spans.jsonl"], tmp_path / "annotated", options, roots=["/"])
    write(tmp_path / "whole.jsonl", [{"id": row["id"], "concepts": [5]} for row in ROWS])
    annotate(bare, [tmp_path / "whole.jsonl"], tmp_path / "whole", AnnotateOptions(track="all"), roots=["/"])
    annotated, whole = (cl.open_dataset(tmp_path / name, roots=["/"]) for name in ("annotated", "whole"))
    for k in range(COUNT):
        assert spans_of(annotated, k, "concepts") == spans_of(wanted, k, "concepts")
        start, stop, _ = spans_of(wanted, k, "metadata")[0]
        assert spans_of(whole, k, "all") == [(start, stop, "[5]")]


def test_annotations_of_joined_datasets(built: Path, tmp_path: Path) -> None:
    """Of other templates, and of documents without a prefix."""
    parts = [
        build(built, "bare-x", source="bare.jsonl"),
        build(built, "bare-y", source="bare.jsonl", template="<s>{{ id }}"),
    ]
    cl.concat(parts, built / "joined")
    rows = [{"document": int(row["id"]) + COUNT * k, **span} for k in (0, 1) for row in ROWS for span in row["spans"]]
    write(tmp_path / "numbered.jsonl", rows)
    options = AnnotateOptions(track="concepts", span_unit="character", max_unaligned_spans=1)
    annotate(built / "joined", [tmp_path / "numbered.jsonl"], tmp_path / "annotated", options, roots=["/"])
    joined = cl.open_dataset(tmp_path / "annotated", roots=["/"])
    for template, k in ((TEMPLATE, 0), ("<s>{{ id }}", COUNT)):
        built_with = cl.open_dataset(build(built, f"again{k}", template=template))
        for number in range(COUNT):
            assert spans_of(joined, k + number, "concepts") == spans_of(built_with, number, "concepts")
    bos = Tokenizer.from_file(str(built / "tokenizer.json")).token_to_id("<s>")  # written into a template, it is one
    assert joined.documents()[COUNT + 3]["tokens"][0] == bos


@pytest.mark.parametrize("packing", [None, {"bins": 3}], ids=["windows", "packs"])
def test_without_them_it_is_as_if_there_had_been_none(built: Path, packing: Any) -> None:
    runs = [run_of(built, name, packing) for name in ("view", "plain")]
    samples = np.arange(60, dtype=np.uint64)
    found, wanted = (open_reader(run.blend).read(samples) for run in runs)
    assert found.keys() == wanted.keys()
    for name in set(found) - {"dataset_id"}:
        np.testing.assert_array_equal(found[name], wanted[name], name)


def run_of(folder: Path, name: str, packing: Any) -> Run:
    config = {
        "seq_len": 16,
        "datasets": {"one": {"path": str(folder / name)}},
        "outputs": {"document_ids": True, "position_ids": "document"},
        "tracks": {"concepts": {"layout": "ragged"}},
        **({} if packing is None else {"packing": packing}),
    }
    blend = cl.open_blend(config)
    start = cl.adapters.RunStart.of(
        blend.spec, cl.adapters.BatchSchedule.constant(8), cl.adapters.Partition(micro_batch_size=2, dp_size=2), 16
    )
    return Run(blend=blend, history=History([start]))


def test_documents_of_the_view_are_those_of_the_build(built: Path) -> None:
    view, plain = cl.open_dataset(built / "view"), cl.open_dataset(built / "plain")
    assert len(view) == len(plain) == COUNT
    for k in range(COUNT):
        assert view.document_id(k) == plain.document_id(k)
        np.testing.assert_array_equal(view.documents()[k]["tokens"], plain.documents()[k]["tokens"])
        for track in ("concepts", "metadata"):
            assert spans_of(view, k, track) == spans_of(plain, k, track)
            one, other = (each.documents()[k][track] for each in (view, plain))
            np.testing.assert_array_equal(one.begins_before, other.begins_before)
        assert spans_of(view, k, "prefix") == []
    assert (view.fields(0, view.num_tokens)["loss_mask"] == 1).all()


PHASES = {
    "seq_len": 16,
    "datasets": {"with": {}, "without": {}},
    "phases": [
        {"start": 0, "weights": {"with": 0.75, "without": 0.25}},
        {"start": 64, "weights": {"without": 1}},
    ],
    "tracks": {"prefix": {}},
    "loader": {"prefetch_batches": 0},
}  # fmt: skip


def test_a_probability_by_phase_and_a_cooldown(built: Path) -> None:
    """Its share before, none from the cooldown's first sample on; no loss on what is inserted; resumed on other ranks
    across the border, the samples are the same."""
    datasets = {"with": {"path": str(built / "with")}, "without": {"path": str(built / "view")}}
    config = {**PHASES, "datasets": datasets}

    def samples(dp_size: int, count: int, state: Any = None) -> tuple[list[Any], Any]:
        found: dict[int, Any] = {}
        for rank in range(dp_size):
            loader = cl.make_dataloader(config, dp_rank=rank, dp_size=dp_size, micro_batch_size=2, global_batch_size=16)
            with loader:
                if state is not None:
                    loader.load_state_dict(state)
                for _, batch in zip(range(count // 2 // dp_size), loader, strict=False):
                    for row, number in enumerate(batch["sample_index"].tolist()):
                        found[number] = {name: values[row].tolist() for name, values in batch.items()}
                last = loader.state_dict()
        return [found[number] for number in sorted(found)], last

    found, _ = samples(1, 96)
    assert len(found) == 96
    names = [one["dataset_id"] for one in found]
    assert names[:64].count(0) == 48
    assert set(names[64:]) == {1}
    for number, one in enumerate(found):
        marked = [value >= 0 for value in one["prefix_span_index"]]
        assert number < 64 or not any(marked)
        for at in range(15):  # the label at a position is the input at the next
            assert one["loss_mask"][at] == (not marked[at + 1])
    assert any(any(value >= 0 for value in one["prefix_span_index"]) for one in found[:64])
    half, state = samples(2, 48)
    rest, _ = samples(4, 48, state)
    assert half + rest == found


def test_trace_and_when(built: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A document is found through either dataset; what was inserted is marked, also where no concept is asked for."""
    config = {**PHASES, "datasets": {"with": {"path": str(built / "with")}, "without": {"path": str(built / "view")}}}
    config["tracks"] = {"concepts": {}}
    (tmp_path / "run.yaml").write_text(json.dumps(config))
    blend = cl.open_blend(config)
    start = cl.adapters.RunStart.of(
        blend.spec, cl.adapters.BatchSchedule.constant(8), cl.adapters.Partition(micro_batch_size=2, dp_size=2), 16
    )
    run = Run(blend=blend, history=History([start]))
    for name, inserted in (("with", True), ("without", False)):
        seen = next(found for found in locate_document(run, "1") if found.dataset == name)
        traced = trace_sample(run, seen.sample)
        part = next(one for one in traced.documents if one.id == "1")
        marked = [span for span in traced.spans["prefix"] if part.inputs and span.start == part.inputs[0]]
        assert bool(marked) == inserted
        assert main(["trace", str(tmp_path / "run.yaml"), "--sample", str(seen.sample)]) == 0
        assert (f"[{part.inputs[0]}, " in capsys.readouterr().out.partition("  prefix: ")[2]) == inserted


def test_complementary_shares(built: Path) -> None:
    """No document twice: nine tenths with their prefix, the others without."""
    make_subsets(built / "with", built / "nine", SubsetOptions(where="share < 0.9"))
    make_subsets(built / "with", built / "one", SubsetOptions(where="share >= 0.9", spans="not prefix:metadata"))
    nine, one = (cl.open_dataset(built / name) for name in ("nine", "one"))
    ids = [ds.document_id(k) for ds in (nine, one) for k in range(len(ds))]
    assert sorted(ids, key=int) == [str(k) for k in range(COUNT)]
    assert len(one)
    assert not len(one.spans("prefix", 0, one.num_tokens).start)


@pytest.mark.parametrize(
    ("template", "problem"),
    [
        (
            "{{ ulr }}",
            "line 1: the template of the prefix fails: UndefinedError: 'ulr' is undefined; the record has id, ",
        ),
        ("{{ metadata.q }}", "line 1: .*has no attribute 'q'"),
        ("{{ metadata.k / 0 }}", "line 1: .*ZeroDivisionError"),
        ("{{ id.__class__.__mro__ }}", "line 1: .*SecurityError"),
        ("{{ url }}", "line 1: .*'url' is undefined"),
        ("{{ '\\ud800' }}", "line 1: .*UnicodeEncodeError"),
    ],
)
def test_a_record_of_which_it_cannot_be_rendered(folder: Path, tmp_path: Path, template: str, problem: str) -> None:
    columns = cl.writing.Columns(metadata="metadata", ignored=["url"])
    with pytest.raises(InputError, match=f"in.jsonl: {problem}"):
        cl.build(folder / "in.jsonl", tmp_path / "ds", tokenizer="bytes", columns=columns, prefix=template)


def test_skip_bad(folder: Path, tmp_path: Path) -> None:
    out, bad = tmp_path / "ds", tmp_path / "bad.jsonl"
    more = ["--workers", "1", "--prefix", "{{ url }}", "--bad-records", str(bad)]
    assert main(["build", str(folder / "in.jsonl"), "--out", str(out), "--tokenizer", "bytes", *more]) == 0
    assert len(bad.read_text().splitlines()) == sum("url" not in row for row in ROWS)


@pytest.mark.parametrize(
    ("template", "problem"),
    [
        ("{{ url", "found a template that is not Jinja"),
        ("{{ url|random }}", "No filter named 'random'"),
        ("", "found an empty template"),
        (r"{{ url }}\n", "found a backslash and an n in the text"),
    ],
)
def test_what_is_no_template(template: str, problem: str) -> None:
    with pytest.raises(ConfigError, match=problem):
        Prefix(template)


def test_what_it_cannot_go_with(folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    write(tmp_path / "tokens.jsonl", [{"tokens": [1, 2]}])
    write(tmp_path / "taken.jsonl", [{"text": "a", "spans_prefix": []}])
    for name, more, problem in (
        ("tokens.jsonl", [], "prefix: found tokens, expected text"),
        ("taken.jsonl", [], "prefix: found a track 'prefix' of the input"),
        ("taken.jsonl", ["--chat"], "build: found --chat and --prefix, expected only one"),
    ):
        command = ["build", str(tmp_path / name), "--out", str(tmp_path / "ds"), "--tokenizer", "bytes", *more]
        assert main([*command, "--prefix", "x"]) == 2
        assert problem in capsys.readouterr().err
    chat = ChatRules(template="{{ messages }}", specials={})
    with raises(ConfigError, "build", "chat and prefix"):
        cl.build(tmp_path / "taken.jsonl", tmp_path / "ds", tokenizer="bytes", prefix="x", chat=chat)


def test_with_chunks_of_their_own(tmp_path: Path) -> None:
    """From the columns that are kept; chunks attached later lie where a build puts them."""
    corpus = make(tmp_path, np.random.default_rng(1), documents=24).write()
    chunks = [*corpus.recipe(), "--quiet"]
    prefix = ["--tokenizer", "bytes", "--metadata-column", "source", "--prefix", "{{ doc }} of {{ source }}: "]
    text, files = ["--column", "text=body"], corpus.files("documents")
    others = ["--column", "id=doc", "--ignore-column", "starts", "--ignore-column", "error"]
    for name, more in (("built", chunks), ("bare", others)):
        assert main(["build", *files, "--out", str(tmp_path / name), *text, *prefix, *more, "--workers", "1"]) == 0
    more = ["--track", "concepts", "--out", str(tmp_path / "later"), *text, *chunks]
    assert main(["annotate", str(tmp_path / "bare"), *files, *more]) == 0
    built, later = (cl.open_dataset(tmp_path / name, roots=["/"]) for name in ("built", "later"))
    sources = {row["doc"]: row["source"] for row in corpus.documents}
    for k in range(len(built)):
        name = built.document_id(k)
        before = f"{name} of {sources[int(str(name))]}: ".encode()
        assert bytes(built.documents()[k]["tokens"][: len(before)].tolist()) == before
        assert spans_of(built, k, "prefix") == [(0, len(before), "[0]")]
        assert spans_of(later, k, "concepts") == spans_of(built, k, "concepts")
    assert len(built.spans("concepts", 0, built.num_tokens).start) > 20
