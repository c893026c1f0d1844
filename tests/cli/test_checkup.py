"""What `conceptloader doctor` says of a configuration's samples, beside what the loader gives."""

import json
import re
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import yaml

import conceptloader as cl
from conceptloader.base.hashing import fingerprint
from conceptloader.cli import main
from conceptloader.errors import FormatError
from conceptloader.testing import random_documents, write_dataset
from tests.registered import registered

Capture = pytest.CaptureFixture[str]


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """web: with concepts and a quality; bare: without; zero: of quality 0; lost: spans get no token; none: no spans."""
    path = tmp_path_factory.mktemp("data")

    def build(name: str, span: dict[str, int] | None, quality: float | None) -> None:
        rows = []
        for k in range(40):
            row: dict[str, Any] = {"id": f"{name}{k}", "text": "Red paint. " * (4 + k % 5)}
            if span is not None:
                row["spans"] = [{**span, "concepts": ["red"]}] if span else []
            if quality is not None:
                row["quality"] = quality
            rows.append(json.dumps(row) + "\n")
        (path / f"{name}.jsonl").write_text("".join(rows))
        words = ["--tokenizer", "bytes", "--workers", "1", "--quiet", "--max-unaligned-spans", "1"]
        words += ["--vocabulary", str(path / "names.txt")] * (span is not None)
        words += ["--number", "quality:f4"] * (quality is not None)
        assert main(["build", str(path / f"{name}.jsonl"), "--out", str(path / name), *words]) == 0

    (path / "names.txt").write_text("red\nblue\n")
    build("web", {"start": 0, "end": 3}, 0.5)
    build("bare", None, None)
    build("zero", {"start": 0, "end": 3}, 0)
    build("lost", {"start": 2, "end": 2}, 1)
    build("none", {}, None)
    return path


def doctor(data: Path, tmp_path: Path, capsys: Capture, *more: str, code: int, **config: Any) -> dict[str, Any]:
    """Findings by name, the bad one of a name first."""
    names = config.pop("datasets", ["web"])
    run = tmp_path / "run.yaml"
    run.write_text(yaml.safe_dump({"seq_len": 32, "datasets": {n: {"path": str(data / n)} for n in names}, **config}))
    capsys.readouterr()
    assert main(["doctor", str(run), "--seconds", "0.05", "--json", *more]) == code
    found = json.loads(capsys.readouterr().out)["findings"]
    return {one["name"]: one for one in sorted(found, key=lambda one: not one["good"], reverse=False)[::-1]}


def test_a_good_configuration(data: Path, tmp_path: Path, capsys: Capture) -> None:
    outputs = {"loss_weight": {"name": "quality", "outside": 1}}
    found = doctor(data, tmp_path, capsys, "--vocab-size", "257", code=0, tracks={"concepts": {}}, outputs=outputs)
    assert all(one["good"] for one in found.values())
    assert set(found) == {"vocabulary", "epochs", "documents", "tail", "loss", "weights", "concepts", "spans", "ranks"}
    with cl.make_dataloader(tmp_path / "run.yaml", micro_batch_size=1) as loader:
        windows = sum(loader.blend.order.sizes)
    assert found["epochs"]["text"] == f"after {windows} samples: web 1.00"
    assert "web 0.5 to 0.5, 0.0% are 0" in found["weights"]["text"]
    assert "1 of 2 concepts" in found["concepts"]["text"]
    assert "0 of 40 spans" in found["spans"]["text"]


def test_what_it_says_of_the_loss_is_what_the_loader_gives(data: Path, tmp_path: Path, capsys: Capture) -> None:
    config = {"exclude": [{"dataset": "web", "tokens": [0, 600]}]}
    found = doctor(data, tmp_path, capsys, "--samples", "70", code=0, **config)
    drawn = np.random.default_rng(0).integers(0, 70, 256)
    dataset = cl.SampleDataset(tmp_path / "run.yaml", num_samples=70)
    share = 1 - np.mean([dataset[int(k)]["loss_mask"].numpy() for k in drawn])
    assert found["loss"]["text"] == f"labels without a loss in 256 samples: web {share:.1%}"
    assert 0 < share < 0.5


def test_tokens_at_the_end_that_no_window_has(data: Path, tmp_path: Path, capsys: Capture) -> None:
    """Of a split as of a dataset; what the loader reads is the rest."""
    config = {
        "seq_len": 700,
        "order": "sequential",
        "datasets": {"web": {"path": str(data / "web"), "split": [0.5, 1]}},
    }
    (tmp_path / "run.yaml").write_text(yaml.safe_dump(config))
    assert main(["doctor", str(tmp_path / "run.yaml"), "--seconds", "0.05"]) == 1
    with cl.make_dataloader(config, micro_batch_size=1) as loader:
        read = sum(batch["labels"].numel() for batch in loader) + 1
        first, end = loader.blend.spec.members["web"].token_range
    left, share = end - first - read, (end - first - read) / (end - first)
    assert 0 < left < 700
    assert f"web: {left:,} of {end - first:,} tokens ({share:.1%}), at the end" in capsys.readouterr().out
    with cl.make_dataloader({**config, "packing": {"bins": 2}}, micro_batch_size=1) as loader:
        dataset = loader.blend.datasets["web"]
        documents = dataset.documents_before(end) - dataset.documents_before(first)
        trained = sum(int(batch["loss_mask"].sum()) for batch in loader)
    assert trained == end - first - documents  # all but the first token of each document


LATE = [{"at": 0, "weights": {"web": 1}}, {"at": 10_000, "weights": {"web": 1, "zero": 1}}]
WEIGHTS = {"loss_weight": {"name": "quality", "outside": 0}}
BAD = {
    "vocabulary": (["--vocab-size", "100"], {}, "257 tokens, expected at most the 100"),
    "epochs": ([], {"datasets": ["web", "zero"], "phases": LATE}, "never drawn: zero"),
    "loss": ([], {"exclude": [{"dataset": "web", "tokens": [0, 2000]}]}, "web 7"),
    "weights": ([], {"datasets": ["zero"], "outputs": WEIGHTS}, "100.0% are 0"),
    "concepts": ([], {"datasets": ["none"], "tracks": {"concepts": {}}}, "0 of 2 concepts"),
    "spans": ([], {"datasets": ["lost"]}, "40 of 40 spans got no token"),
    "masked": ([], {"exclude": [{"at": 9, "ids": ["web1", "nobody"]}]}, "exclude[0] has 1 ids of no dataset"),
}  # fmt: skip


@pytest.mark.parametrize("name", BAD)
def test_what_is_bad_is_said_and_decides_the_exit_code(name: str, data: Path, tmp_path: Path, capsys: Capture) -> None:
    words, config, said = BAD[name]
    found = doctor(data, tmp_path, capsys, *words, code=1, **config)
    assert [one for one, finding in found.items() if not finding["good"]] == [name]
    assert said in found[name]["text"]
    assert main(["doctor", str(tmp_path / "run.yaml"), "--seconds", "0.05", *words]) == 1
    assert f"BAD  {name}" in capsys.readouterr().out


def test_what_is_excluded_is_counted_as_the_loader_reads_it(data: Path, tmp_path: Path, capsys: Capture) -> None:
    masked = {"exclude": [{"dataset": "web", "tokens": [32, 33]}, {"dataset": "web", "tokens": [40, 97]}]}
    masked["exclude"].append({"at": 0, "ids": ["web7", "web39"]})
    found = doctor(data, tmp_path, capsys, code=0, order="sequential", **masked)["masked"]["text"]
    with cl.make_dataloader(str(tmp_path / "run.yaml"), micro_batch_size=4) as loader:
        without = sum(int((batch["loss_mask"].amax(1) == 0).sum()) for batch in loader)
        tokens = 1 + 57 + sum(11 * (4 + k % 5) + 1 for k in (7, 39))
        total, windows = loader.blend.datasets["web"].num_tokens, loader.run.num_samples
    assert f"web: {tokens} of {total:,} tokens ({tokens / total:.1%}), and with them {without} of {windows} w" in found
    alone = [{"at": 0, "ids": ["web7"], "take": "own"}]
    alone += [{"at": 0, "concept": {"track": "concepts", "name": "red"}, "take": "labels"}]
    found = doctor(data, tmp_path, capsys, code=0, order="sequential", exclude=alone)["masked"]["text"]
    tokens, labels = 11 * (4 + 7 % 5) + 1, 40 * 3
    assert f"web: {tokens} tokens alone ({tokens / total:.1%}); web: {labels} labels alone" in found


def test_a_subset_beside_its_source_is_named(data: Path, tmp_path: Path, capsys: Capture) -> None:
    more = {"some": 60, "other": 70}
    for name, tokens in more.items():
        words = ["--where", f"tokens > {tokens}", "--quiet"]
        assert main(["subset", str(data / "web"), "--out", str(data / name), *words]) == 0
    datasets: dict[str, Any] = {name: {"path": str(data / name)} for name in ("web", "some", "other")}
    datasets["web"]["split"] = [0, 0.5]
    run = {"seq_len": 32, "weights": "by_size", "datasets": datasets}
    (tmp_path / "run.yaml").write_text(yaml.safe_dump(run))
    capsys.readouterr()
    assert main(["doctor", str(tmp_path / "run.yaml"), "--seconds", "0.05", "--json"]) == 0
    texts = [one["text"] for one in json.loads(capsys.readouterr().out)["findings"] if one["name"] == "overlap"]
    web = cl.open_dataset(data / "web")
    lengths = np.array([np.diff(web.document_range(k))[0] for k in range(40)])
    half = np.arange(40) < web.documents_before(web.split(0, 0.5)[1])
    share = {name: lengths[half & (lengths > n)].sum() / lengths[lengths > n].sum() for name, n in more.items()}
    said = [f"{share[name]:.1%} of the tokens of {name} are in web too" for name in more]
    said.append("100.0% of the tokens of other are in some too")
    assert sorted(text.partition(":")[0] for text in texts) == sorted(said)


def test_the_digest_of_what_ranks_compare(data: Path, tmp_path: Path, capsys: Capture) -> None:
    first = doctor(data, tmp_path, capsys, code=0)["ranks"]["text"].split()[0]
    blend = cl.open_blend(str(tmp_path / "run.yaml"))
    assert first == fingerprint(blend.facts())
    (tmp_path / "copy").mkdir()
    shutil.copytree(data / "web", tmp_path / "copy/web")
    assert doctor(tmp_path / "copy", tmp_path, capsys, code=0)["ranks"]["text"].startswith(first)
    other = doctor(data, tmp_path, capsys, code=0, outputs={"ignore_index": -100})
    assert not other["ranks"]["text"].startswith(first)


def test_a_dataset_without_the_track_is_named(data: Path, tmp_path: Path, capsys: Capture) -> None:
    config = {"datasets": ["web", "bare"], "weights": "by_size", "tracks": {"concepts": {}}}
    assert "datasets without this track: bare" in doctor(data, tmp_path, capsys, code=0, **config)["concepts"]["text"]


def test_too_many_epochs(data: Path, tmp_path: Path, capsys: Capture) -> None:
    run = {"datasets": {"web": {"path": str(data / "web"), "max_epochs": 2}}, "seq_len": 32}
    (tmp_path / "run.yaml").write_text(yaml.safe_dump(run))
    assert main(["doctor", str(tmp_path / "run.yaml"), "--seconds", "0.05", "--samples", "100000"]) == 1
    assert "BAD  epochs      datasets.web.max_epochs" in capsys.readouterr().out


def test_packs_and_documents(data: Path, tmp_path: Path, capsys: Capture) -> None:
    found = doctor(data, tmp_path, capsys, code=0, packing={})
    lengths = np.array([11 * (4 + k % 5) + 1 for k in range(40)])
    assert found["documents"]["text"] == f"web: {np.mean(lengths > 32):.1%} of 40 are longer than a sample"


def test_tokens_in_no_sample(data: Path, tmp_path: Path, capsys: Capture, caplog: pytest.LogCaptureFixture) -> None:
    """Of each dataset as it is read, in a split as well: what the batches of an epoch hold, and what doctor says."""
    write_dataset(tmp_path / "docs", random_documents(300, seed=3), shards=2, mode="document")
    write_dataset(tmp_path / "web", random_documents(300, seed=3), shards=2)
    docs, web = ({"path": str(tmp_path / name), "split": [0.5, 1]} for name in ("docs", "web"))
    truncated = {"packing": {"overflow": "truncate"}}
    for dataset, more in ((docs, {}), (web, truncated), (web, {"packing": {}}), (web, {})):
        config: dict[str, Any] = {"seq_len": 24, "order": "sequential", "datasets": {"a": dataset}, **more}
        (tmp_path / "run.yaml").write_text(yaml.safe_dump(config))
        caplog.clear()
        with cl.batches(config, micro_batch_size=1) as loader:
            view = loader.blend.views[0]
            assert view is not None
            ranges = [view.dataset.document_range(k) for k in range(300)]
            first, end = view.member.token_range
            if view.by_document:
                first, end = ranges[view.start][0], ranges[view.start + view.count - 1][1]
            mine = [one for one in ranges if first <= one[0] < end]
            read = sum(int(batch["loss_mask"].sum()) for batch in loader) + len(mine) * (view.kind != "window")
        warned = [one for one in caplog.messages if "in no sample" in one]
        assert main(["doctor", str(tmp_path / "run.yaml"), "--seconds", "0.05"]) == (
            dataset is docs or more == truncated
        )
        text = capsys.readouterr().out
        said = re.search(r"(BAD|ok )  documents   a: (.*)", text)
        assert said is not None
        if view.kind == "window":
            cut = sum(any(a < first + k * 24 < z for k in range(1, view.count + 1)) for a, z in mine) / len(mine)
            assert cut <= float(re.findall(r"at most ([\d.]+)%", said[2])[0]) / 100
        lost = 1 - read / (end - first)
        found = re.search(r"([\d.]+)% of the tokens are in no sample", said[2])
        if dataset is docs or more == truncated:
            assert said[1] == "BAD"
            assert found is not None
            assert float(found[1]) / 100 == pytest.approx(lost, abs=0.02)
            (line,) = warned
            assert "overflow: split" in line
        else:
            assert (said[1], found, warned) == ("ok ", None, [])


def test_more_samples_than_a_finite_order_has(data: Path, tmp_path: Path, capsys: Capture) -> None:
    found = doctor(data, tmp_path, capsys, "--samples", "100000", code=1, order="sequential")
    assert [name for name, one in found.items() if not one["good"]] == ["epochs"]


def test_a_track_of_a_codec_of_ones_own(tmp_path: Path, capsys: Capture) -> None:
    class Plain:
        def encode(self, value: bytes) -> bytes:
            return value

        def decode(self, record: memoryview) -> bytes:
            return bytes(record)

        def check(self, record: bytes | memoryview) -> None:
            pass

    options = cl.writing.BuildOptions(
        tokenizer=cl.writing.Tokenizer(name="bytes", vocab_size=257),
        tracks={"own": cl.writing.TrackOptions(codec="own")},
    )
    with registered("own", Plain()), cl.writing.create_writer(tmp_path / "ds", options).shard(0) as shard:
        shard.add_document([65] * 99, {"own": [(0, 99, b"x" * 5000)]})
    cl.writing.finalize(tmp_path / "ds")
    doctor(tmp_path, tmp_path, capsys, code=0, datasets=["ds"])
    said = "track 'own': codec 'own' is known to your code only: its records are bytes here"
    tracks = {"own": {"layout": "records"}}
    doctor(tmp_path, tmp_path, capsys, code=0, datasets=["ds"], tracks=tracks)
    (tmp_path / "run.yaml").write_text(
        yaml.safe_dump({"seq_len": 9, "datasets": {"ds": {"path": "ds"}}, "tracks": tracks})
    )
    for words, shown in (
        (["trace", "run.yaml", "--sample", "0"], "own"),
        (["inspect", "ds", "--tokens", "0:9"], '"787878'),
        (["inspect", "ds", "--stats"], "own"),
        (["verify", "ds", "--full"], "sound"),
        (["subset", "ds", "--where", "tokens > 0", "--out", "some"], "some"),
    ):
        capsys.readouterr()
        assert main([str(tmp_path / one) if one in ("ds", "run.yaml", "some") else one for one in words]) == 0
        out, err = capsys.readouterr()
        assert shown in out
        assert len(out) < 5000
        assert err.count(said) == (words[0] not in ("subset", "verify")), err
    with pytest.raises(FormatError, match="one that is registered"):
        cl.make_dataloader(tmp_path / "run.yaml", micro_batch_size=1)
