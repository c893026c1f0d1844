"""Tables of steps and of what was seen, against walks through single samples of a run with restarts."""

import dataclasses
import json
from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.parquet
import pytest
import yaml

import conceptloader as cl
from conceptloader.blend import open_blend
from conceptloader.cli import main
from conceptloader.errors import ConfigError, FormatError
from conceptloader.format.parquet import write_parquet
from conceptloader.format.read.bulk import concepts_of, documents_of, gather, spans_of
from conceptloader.format.spec.manifest import Tokenizer
from conceptloader.format.spec.options import BuildOptions, TrackOptions
from conceptloader.format.write.build import create_build
from conceptloader.format.write.finalize import finalize
from conceptloader.order.progress.runlog import History, RunLog, RunStart
from conceptloader.testing import random_documents, write_dataset
from conceptloader.trace import Run, exposure, trace_sample, trace_step, trace_steps
from conceptloader.trace import bulk as bulk_module

STEPS = 30


def table(run: Run, first: int, stop: int) -> list[dict[str, Any]]:
    return [row for batch in trace_steps(run, first, stop) for row in batch.to_pylist()]


def one_by_one(run: Run, first: int, stop: int) -> list[dict[str, Any]]:
    rows = []
    for step in range(first, stop):
        for sample in trace_step(run, step):
            (place,) = [place for place in sample.places if place.step == step]
            fixed = {"step": step, "sample": sample.sample, "micro_batch": place.micro_batch, "dp_rank": place.dp_rank}
            fixed |= {"slot": place.slot, "dataset": sample.dataset, "epoch": sample.epoch, "window": sample.window}
            tracks = sorted(sample.spans)
            if sample.tokens is None:
                none = {"document": None, "id": None, "start": None, "end": None}
                rows.append({**fixed, **none, "concepts": []})
                continue
            for part in sorted(sample.documents, key=lambda part: part.tokens):
                a, b = part.inputs or (0, 0)
                start, end = part.tokens
                row = {**fixed, "document": part.document, "id": part.id, "start": start, "end": end}
                for track in tracks:
                    spans = sample.spans[track]
                    touching = [s.record for s in spans if part.inputs and s.start < b and s.end > a]
                    row[track] = sorted({concept for record in touching for concept in record})
                rows.append(row)
    return rows


class Noted:
    """Files of the numbers 0, 1, ..., and what was read of them."""

    def __init__(self) -> None:
        self.sizes: list[int] = []

    def read(self, kind: str, shard: int, offset: int, size: int) -> bytes:
        self.sizes.append(size)
        return np.arange(offset // 8, (offset + size) // 8, dtype=np.int64).tobytes()


def test_ranges_near_each_other_are_one_read_and_others_are_not() -> None:
    for low, high, sizes in (
        ([0, 10, 5], [3, 12, 6], [12]),
        ([90_000, 20, 10, 22], [90_002, 22, 13, 23], [13, 2]),  # in the order of the file
        ([1 << 40, (1 << 40) + 1_000, 0], [(1 << 40) + 1, (1 << 40) + 1_001, 1], [1, 1_001]),
    ):
        files = Noted()
        found = gather(files, "x", 0, np.int64, np.array(low), np.array(high))  # type: ignore[arg-type]
        assert found.tolist() == [n for a, b in zip(low, high, strict=True) for n in range(a, b)]
        assert files.sizes == [8 * size for size in sizes]


@pytest.fixture(params=[None, 5])
def small_pieces(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    if request.param is not None:
        monkeypatch.setattr(bulk_module, "_SAMPLES", 11)
        monkeypatch.setattr(bulk_module, "_RANGES", request.param)


@pytest.mark.usefixtures("small_pieces")
def test_a_table_of_steps_is_what_single_samples_say(run: Run) -> None:
    found = table(run, 0, STEPS)
    tracks = ("concepts", "quality")
    assert [{k: v for k, v in row.items() if k not in tracks} for row in found] == [
        {k: v for k, v in row.items() if k not in tracks} for row in one_by_one(run, 0, STEPS)
    ]
    for row, expected in zip(found, one_by_one(run, 0, STEPS), strict=True):
        for track in tracks:
            assert row[track] == expected[track], row
    assert table(run, 6, 13) == [row for row in found if 6 <= row["step"] < 13]


@pytest.mark.parametrize("mode", ["document", "stream-with-metadata", "packs"])
@pytest.mark.parametrize("encoding", ["dense", "spans"])
def test_documents_quarantine_and_dense_tracks(tmp_path: Path, mode: str, encoding: str) -> None:
    packing = {"packing": {"bins": 5}} if mode == "packs" else {}
    mode = "document" if mode == "packs" else mode
    raw = random_documents(60, seed=2, mean_length=20)
    path = write_dataset(tmp_path / "d", raw, shards=3, mode=mode, encoding=encoding)
    blend = open_blend(
        {
            "seq_len": 16,
            "datasets": {"d": {"path": path}},
            "quarantine": [{"dataset": "d", "tokens": [100, 160]}],
            **packing,
        }
    )
    start = RunStart(step=0, consumed=0, batch=[[0, 6]], micro_batch_size=3, dp_size=2, seq_len=16, spec="0" * 32)
    run = Run(blend=blend, history=History([start]))
    assert table(run, 0, 12) == one_by_one(run, 0, 12)
    seen = exposure(run, until=12)
    check_exposure(run, seen, range(72), 12)


def test_concept_ids_without_names_may_have_32_bits(tmp_path: Path) -> None:
    options = BuildOptions(
        mode="stream-with-metadata", tokenizer=Tokenizer(name="t", vocab_size=9, eos_id=0), tracks={"c": TrackOptions()}
    )
    build = create_build(tmp_path / "d", options, plan=[[0, 1]])
    with build.shard(0) as writer:
        writer.add_document([1] * 9, {"c": [(0, 4, [3, 1 << 31, (1 << 32) - 2])]})
    finalize(build.path)
    blend = open_blend({"seq_len": 8, "datasets": {"d": {"path": build.path}}})
    start = RunStart(step=0, consumed=0, batch=[[0, 1]], micro_batch_size=1, dp_size=1, seq_len=8, spec="0" * 32)
    (row,) = table(Run(blend=blend, history=History([start])), 0, 1)
    assert row["c"] == [3, 1 << 31, (1 << 32) - 2]


def check_exposure(run: Run, seen: Any, samples: Any, until: int) -> None:
    """Against a walk through samples, which trained in order."""
    drawn: Counter[str] = Counter()
    tokens: dict[tuple[str, int], int] = {}
    first: dict[tuple[str, int], int] = {}
    of_concept: Counter[tuple[str, int]] = Counter()
    for sample in samples:
        one = trace_sample(run, sample)
        name = run.member(run.blend.order.sample(sample)[0]).view.name
        drawn[name] += 1
        for part in one.documents:
            key = (name, part.document)
            first.setdefault(key, sample)
            tokens[key] = tokens.get(key, 0) + (part.inputs[1] - part.inputs[0] if part.inputs else 0)
        for span in one.spans.get("concepts", []):
            for concept in set(span.record):
                of_concept[name, concept] += span.end - span.start
    sources = seen.sources().to_pylist()
    assert {row["dataset"]: row["samples"] for row in sources} == {
        row["dataset"]: drawn[row["dataset"]] for row in sources
    }
    documents = seen.documents().to_pylist()
    assert {(r["dataset"], r["document"]) for r in documents} >= set(tokens)
    for row in documents:
        key = row["dataset"], row["document"]
        assert row["seen"] == tokens.get(key, 0), row
        assert row["first_sample"] == first.get(key), row
        assert row["epochs"] == row["seen"] / max(1, row["tokens"])
    total = Counter({name: sum(n for key, n in tokens.items() if key[0] == name) for name in drawn})
    assert {row["dataset"]: row["tokens"] for row in sources} == {
        row["dataset"]: total[row["dataset"]] for row in sources
    }
    for row in seen.concepts().to_pylist():
        assert row["seen"] == of_concept[row["dataset"], row["concept"]], row
        assert row["name"] == f"concept-{row['concept']}"


def trained(run: Run, until: int) -> list[int]:
    """Samples in the order in which they count."""
    return [sample for step in range(until) for sample in range(*run.steps.range_of(step))]


@pytest.mark.parametrize("until", [1, 9, 25])
def test_what_was_seen_is_what_a_walk_finds(run: Run, until: int) -> None:
    seen = exposure(run, until=until)
    check_exposure(run, seen, trained(run, until), until)
    checkpoints = [2, 4, 8, 16]
    for row in seen.documents(checkpoints=checkpoints).to_pylist():
        if row["first_sample"] is None:
            assert row["first_step"] is row["first_checkpoint"] is None
            continue
        step = min(place.step for place in run.places(row["first_sample"]))
        assert row["first_step"] == step
        assert row["first_checkpoint"] == next((at for at in checkpoints if at > step), None)


def test_steps_that_were_done_again_with_other_samples_count_once(run: Run) -> None:
    common = {"batch": [[0, 8]], "micro_batch_size": 4, "dp_size": 2, "seq_len": 16, "spec": "0" * 32}
    # Back to step 3, where the log of the first start had another number of samples.
    starts = [RunStart(step=0, consumed=0, **common), RunStart(step=3, consumed=16, **common)]
    again = dataclasses.replace(run, history=History(starts))
    check_exposure(again, exposure(again, until=6), trained(again, 6), 6)
    assert table(again, 2, 5) == one_by_one(again, 2, 5)


def test_without_a_log(run: Run) -> None:
    lonely = Run(blend=run.blend)
    seen = exposure(lonely, num_samples=100)
    check_exposure(lonely, seen, range(100), 0)
    assert {row["first_step"] for row in seen.documents().to_pylist()} == {None}
    with pytest.raises(ConfigError, match="steps are not known"):
        exposure(lonely, until=3)
    with pytest.raises(ConfigError, match="expected until"):
        exposure(lonely)
    with pytest.raises(ConfigError, match="steps are not known"):
        next(trace_steps(lonely, 0, 2))
    with pytest.raises(ConfigError, match="found 5:5"):
        next(trace_steps(run, 5, 5))


def test_opt_outs(run: Run) -> None:
    seen = exposure(run, until=20)
    rows = seen.documents(ids=["web-7", "nobody", "books-3"]).to_pylist()
    assert [(row["dataset"], row["id"]) for row in rows] == [("books", "books-3"), ("web", "web-7"), (None, "nobody")]
    every = {(row["dataset"], row["id"]): row for row in seen.documents().to_pylist()}
    assert rows[:2] == [every["books", "books-3"], every["web", "web-7"]]
    assert (rows[2]["document"], rows[2]["seen"], rows[2]["first_step"]) == (None, 0, None)


@pytest.mark.parametrize("encoding", ["dense", "spans"])
def test_reading_in_bulk_equals_reading_one_by_one(tmp_path: Path, encoding: str) -> None:
    path = write_dataset(tmp_path / "d", random_documents(200, seed=5, mean_length=30), encoding=encoding)
    with cl.open_dataset(path) as dataset:
        reader, rng = dataset.reader, np.random.default_rng(0)
        start = rng.integers(0, dataset.num_tokens - 1, 300)
        stop = np.minimum(start + rng.integers(1, 300, 300), dataset.num_tokens)
        start, stop = np.append(start, 0), np.append(stop, dataset.num_tokens)
        found = documents_of(reader, 0, start, stop)
        spans, records = spans_of(reader, 0, "concepts", start, stop)
        offsets, ids = concepts_of(reader, 0, "concepts", records, 20)
        for k, (a, b) in enumerate(zip(start.tolist(), stop.tolist(), strict=True)):
            documents = dataset.documents_in(a, b)
            mine = found.row == k
            assert (found.number[mine].tolist(), found.first[mine].tolist()) == (
                documents.ids.tolist(),
                documents.first.tolist(),
            )
            one = dataset.spans("concepts", a, b)
            mine = spans.row == k
            assert np.maximum(spans.first[mine], a).tolist() == (one.start + a).tolist()
            assert np.minimum(spans.end[mine], b).tolist() == (one.end + a).tolist()
            for at, raw in zip(np.flatnonzero(mine), one.records, strict=True):
                assert ids[offsets[at] : offsets[at + 1]].tolist() == np.frombuffer(raw, "<u4").tolist()


@pytest.mark.parametrize(
    ("kind", "at"),
    [("documents.bin", 80), ("documents.bin", -20), ("concepts.spans", -20), ("concepts.spans", 24 * 12)],
)
def test_damaged_tables_are_refused(tmp_path: Path, kind: str, at: int) -> None:
    raw = random_documents(200, seed=5, mean_length=60)
    path = Path(write_dataset(tmp_path / "d", raw, encoding="spans"))
    file = path / f"00000.{kind}"
    data = bytearray(file.read_bytes())
    data[at + 5 if at > 0 else at] ^= 0x40
    file.write_bytes(data)
    config = {"seq_len": 16, "datasets": {"d": {"path": str(path)}}, "loader": {"check_files": False}}
    start = RunStart(step=0, consumed=0, batch=[[0, 50]], micro_batch_size=50, dp_size=1, seq_len=16, spec="0" * 32)
    with pytest.raises(FormatError):
        list(trace_steps(Run(blend=open_blend(config), history=History([start])), 0, 14))


def test_the_commands(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    raw = random_documents(40, seed=1)
    (tmp_path / "run.yaml").write_text(
        yaml.safe_dump({"seq_len": 32, "datasets": {"d": {"path": write_dataset(tmp_path / "d", raw)}}})
    )
    config, log = tmp_path / "run.yaml", tmp_path / "log"
    log.mkdir()
    from conceptloader.trace import open_run

    spec = open_run(config).blend.spec
    start = RunStart(step=0, consumed=0, batch=[[0, 8]], micro_batch_size=4, dp_size=2, seq_len=32, spec=spec.hash)
    RunLog(log).append(start, spec)
    run = open_run(config, log)

    def told(*words: object, code: int = 0) -> str:
        assert main([*map(str, words)]) == code
        captured = capsys.readouterr()
        return captured.out if code == 0 else captured.err

    common = (config, "--log", log)
    assert [json.loads(line) for line in told("trace", *common, "--steps", "2:4").splitlines()] == table(run, 2, 4)
    out = tmp_path / "steps.parquet"
    told("trace", *common, "--steps", "0:9", "--format", "parquet", "--out", out)
    assert pyarrow.parquet.read_table(out).to_pylist() == table(run, 0, 9)
    told("trace", *common, "--steps", "0:9", "--out", tmp_path / "steps.jsonl")
    assert [json.loads(line) for line in (tmp_path / "steps.jsonl").read_text().splitlines()] == table(run, 0, 9)
    sources = exposure(run, until=5).sources().to_pylist()
    lines = told("exposure", *common, "--until", 5, "--format", "jsonl").splitlines()
    assert [json.loads(line) for line in lines] == sources
    header, *shown = (line.split() for line in told("exposure", *common, "--until", 5).splitlines())
    assert header == list(sources[0])
    assert [dict(zip(header, row, strict=True))["tokens"].replace(",", "") for row in shown] == [
        str(one["tokens"]) for one in sources
    ]
    assert json.loads(told("exposure", *common, "--until", 5, "--json")) == {"rows": sources}
    (tmp_path / "out.txt").write_text("\ufeffdoc-3\r\n\ndoc-99 \n")  # as editors leave it
    rows = told(
        "exposure", *common, "--until", 5, "--by", "document", "--documents", tmp_path / "out.txt", "--save-every", 2,
        "--format", "jsonl",
    )  # fmt: skip
    assert [json.loads(line) for line in rows.splitlines()] == exposure(run, until=5).documents(
        ["doc-3", "doc-99"], [2, 4]
    ).to_pylist()
    told("exposure", config, "--samples", 40, "--by", "concept", "--format", "parquet", "--out", tmp_path / "c.parquet")
    assert pyarrow.parquet.read_table(tmp_path / "c.parquet").num_rows == 20
    assert "expected A:B" in _usage(capsys, "trace", *common, "--steps", "4:4")
    assert "--out: found nothing" in told("trace", *common, "--steps", "2:4", "--format", "parquet", code=2)
    assert "--format: found without --steps" in told("trace", *common, "--step", "2", "--format", "parquet", code=2)
    assert "--rank: found together" in told("trace", *common, "--steps", "2:4", "--rank", "0", code=2)
    assert "expected --by document" in told("exposure", *common, "--until", 5, "--save-every", 2, code=2)
    assert "track: found 'red'" in told("exposure", *common, "--until", 5, "--by", "concept", "--track", "red", code=2)
    assert not list(tmp_path.glob(".*"))


def _usage(capsys: pytest.CaptureFixture[str], *words: object) -> str:
    with pytest.raises(SystemExit, match="2"):
        main([*map(str, words)])
    return capsys.readouterr().err


@pytest.mark.parametrize("rows", [0, 1, 4, 8, 9])
def test_a_parquet_table_of_just_some_row_groups_is_whole(tmp_path: Path, rows: int) -> None:
    batches = [pyarrow.record_batch({"n": pyarrow.array(range(k, min(k + 8, rows)))}) for k in range(0, rows or 1, 8)]
    assert write_parquet(batches, str(tmp_path / "table"), row_group=4) == rows
    assert pyarrow.parquet.read_table(tmp_path / "table")["n"].to_pylist() == list(range(rows))
