"""What `conceptloader doctor` says of a configuration's samples, beside what the loader gives."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import yaml

import conceptloader as cl
from conceptloader.cli import main

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
    assert set(found) == {"vocabulary", "epochs", "documents", "loss", "weights", "concepts", "spans", "order"}
    with cl.make_dataloader(tmp_path / "run.yaml", micro_batch_size=1) as loader:
        assert found["order"]["text"].startswith(loader.blend.spec.hash)
        windows = sum(loader.blend.order.sizes)
    assert found["epochs"]["text"] == f"after {windows} samples: web 1.00"
    assert "web 0.5 to 0.5, 0.0% are 0" in found["weights"]["text"]
    assert "1 of 2 concepts" in found["concepts"]["text"]
    assert "0 of 40 spans" in found["spans"]["text"]


def test_what_it_says_of_the_loss_is_what_the_loader_gives(data: Path, tmp_path: Path, capsys: Capture) -> None:
    config = {"quarantine": [{"dataset": "web", "tokens": [0, 600]}]}
    found = doctor(data, tmp_path, capsys, "--samples", "70", code=0, **config)
    drawn = np.random.default_rng(0).integers(0, 70, 256)
    dataset = cl.SampleDataset(tmp_path / "run.yaml", num_samples=70)
    share = 1 - np.mean([dataset[int(k)]["loss_mask"].numpy() for k in drawn])
    assert found["loss"]["text"] == f"labels without a loss in 256 samples: web {share:.1%}"
    assert 0 < share < 0.5


LATE = [{"start": 0, "weights": {"web": 1}}, {"start": 10_000, "weights": {"web": 1, "zero": 1}}]
WEIGHTS = {"loss_weight": {"name": "quality", "outside": 0}}
BAD = {
    "vocabulary": (["--vocab-size", "100"], {}, "257 tokens, expected at most the 100"),
    "epochs": ([], {"datasets": ["web", "zero"], "phases": LATE}, "never drawn: zero"),
    "loss": ([], {"quarantine": [{"dataset": "web", "tokens": [0, 2000]}]}, "web 7"),
    "weights": ([], {"datasets": ["zero"], "outputs": WEIGHTS}, "100.0% are 0"),
    "concepts": ([], {"datasets": ["none"], "tracks": {"concepts": {}}}, "0 of 2 concepts"),
    "spans": ([], {"datasets": ["lost"]}, "40 of 40 spans got no token"),
}  # fmt: skip


@pytest.mark.parametrize("name", BAD)
def test_what_is_bad_is_said_and_decides_the_exit_code(name: str, data: Path, tmp_path: Path, capsys: Capture) -> None:
    words, config, said = BAD[name]
    found = doctor(data, tmp_path, capsys, *words, code=1, **config)
    assert [one for one, finding in found.items() if not finding["good"]] == [name]
    assert said in found[name]["text"]
    assert main(["doctor", str(tmp_path / "run.yaml"), "--seconds", "0.05", *words]) == 1
    assert f"BAD  {name}" in capsys.readouterr().out


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
    lengths = [11 * (4 + k % 5) + 1 for k in range(40)]
    share = np.mean(np.array(lengths)[np.random.default_rng(0).integers(0, 40, 1000)] > 33)
    assert found["documents"]["text"] == f"web: {share:.1%} of 40 are longer than a sample"


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

    options = cl.BuildOptions(
        tokenizer=cl.Tokenizer(name="bytes", vocab_size=257), tracks={"own": cl.TrackOptions(codec="own")}
    )
    build = cl.create_writer(tmp_path / "ds", options, codecs={"own": Plain()})
    with build.shard(0) as shard:
        shard.add_document([65] * 99, {"own": [(0, 9, b"x")]})
    cl.finalize(tmp_path / "ds")
    doctor(tmp_path, tmp_path, capsys, code=0, datasets=["ds"])
