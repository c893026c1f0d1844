"""What `conceptloader doctor` says of a configuration's samples, beside what the loader gives."""

import json

import numpy as np
import pytest
import yaml

import conceptloader as cl
from conceptloader.cli import main
from tests.corpora.records import write_rows

Capture = pytest.CaptureFixture[str]


@pytest.fixture(scope="module")
def data(tmp_path_factory):
    """web: with concepts and a quality."""
    path = tmp_path_factory.mktemp("data")
    rows = [{"id": f"web{k}", "text": "Red paint. " * (4 + k % 5), "quality": 0.5} for k in range(40)]
    span = {"start": 0, "end": 3, "concepts": ["red"]}
    write_rows(path / "web.jsonl", [{**row, "spans": [span]} for row in rows])
    given = {"vocabulary": {"concepts": ["red", "blue"]}, "number": {"quality": "f4"}}
    cl.build(path / "web.jsonl", path / "web", tokenizer="bytes", **given)
    return path


def doctor(data, tmp_path, capsys, *more, code, **config):
    """Findings by name."""
    names = config.pop("datasets", ["web"])
    run = tmp_path / "run.yaml"
    run.write_text(yaml.safe_dump({"seq_len": 32, "datasets": {n: {"path": str(data / n)} for n in names}, **config}))
    capsys.readouterr()
    assert main(["doctor", str(run), "--seconds", "0.05", "--json", *more]) == code
    found = json.loads(capsys.readouterr().out)["findings"]
    return {one["name"]: one for one in found}


def test_what_it_says_of_the_loss_is_what_the_loader_gives(data, tmp_path, capsys):
    config = {"exclude": [{"dataset": "web", "tokens": [0, 600]}]}
    found = doctor(data, tmp_path, capsys, "--samples", "70", code=0, **config)
    drawn = np.random.default_rng(0).integers(0, 70, 256)
    dataset = cl.SampleDataset(tmp_path / "run.yaml", num_samples=70)
    share = 1 - np.mean([dataset[int(k)]["loss_mask"].numpy() for k in drawn])
    assert found["loss"]["text"] == f"labels without a loss in 256 samples: web {share:.1%}"
    assert 0 < share < 0.5


def test_what_is_excluded_is_counted_as_the_loader_reads_it(data, tmp_path, capsys):
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
