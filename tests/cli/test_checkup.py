"""What `conceptloader doctor` says of a configuration's samples, beside what the loader gives."""

import json
import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import yaml

import conceptloader as cl
from conceptloader.cli import main
from conceptloader.errors import FormatError
from conceptloader.testing import random_documents, write_dataset
from tests.corpora.records import write_rows
from tests.registered import registered

Capture = pytest.CaptureFixture[str]


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """web: with concepts and a quality."""
    path = tmp_path_factory.mktemp("data")
    rows: list[dict[str, Any]] = [
        {"id": f"web{k}", "text": "Red paint. " * (4 + k % 5), "quality": 0.5} for k in range(40)
    ]
    span = {"start": 0, "end": 3, "concepts": ["red"]}
    write_rows(path / "web.jsonl", [{**row, "spans": [span]} for row in rows])
    given: dict[str, Any] = {"vocabulary": {"concepts": ["red", "blue"]}, "number": {"quality": "f4"}}
    cl.build(path / "web.jsonl", path / "web", tokenizer="bytes", **given)
    return path


def doctor(data: Path, tmp_path: Path, capsys: Capture, *more: str, code: int, **config: Any) -> dict[str, Any]:
    """Findings by name."""
    names = config.pop("datasets", ["web"])
    run = tmp_path / "run.yaml"
    run.write_text(yaml.safe_dump({"seq_len": 32, "datasets": {n: {"path": str(data / n)} for n in names}, **config}))
    capsys.readouterr()
    assert main(["doctor", str(run), "--seconds", "0.05", "--json", *more]) == code
    found = json.loads(capsys.readouterr().out)["findings"]
    return {one["name"]: one for one in found}


def test_what_it_says_of_the_loss_is_what_the_loader_gives(data: Path, tmp_path: Path, capsys: Capture) -> None:
    config = {"exclude": [{"dataset": "web", "tokens": [0, 600]}]}
    found = doctor(data, tmp_path, capsys, "--samples", "70", code=0, **config)
    drawn = np.random.default_rng(0).integers(0, 70, 256)
    dataset = cl.SampleDataset(tmp_path / "run.yaml", num_samples=70)
    share = 1 - np.mean([dataset[int(k)]["loss_mask"].numpy() for k in drawn])
    assert found["loss"]["text"] == f"labels without a loss in 256 samples: web {share:.1%}"
    assert 0 < share < 0.5


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
    found = doctor(data, tmp_path, capsys, code=0, order="sequential", exclude=alone)["masked"]["text"]
    tokens = 11 * (4 + 7 % 5) + 1
    assert f"web: {tokens} tokens alone ({tokens / total:.1%})" in found


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
