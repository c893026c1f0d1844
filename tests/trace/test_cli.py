"""plan, trace, when as commands."""

import itertools
import json

import numpy as np
import pytest
import yaml

from conceptloader.cli import main
from conceptloader.loader.torch.loader import make_dataloader
from conceptloader.testing import random_documents, write_dataset
from conceptloader.trace import locate_documents, locate_where, open_run, trace_step


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """run.yaml, and what two ranks left in run/ after 6 steps of 8 samples: run log, next to their batches."""
    folder = tmp_path_factory.mktemp("cli")
    content = {
        "seq_len": 32,
        "datasets": {
            name: {"path": write_dataset(folder / name, random_documents(40, seed=k, prefix=name)), "weight": k + 1}
            for k, name in enumerate(["books", "web"])
        },
        "tracks": {"concepts": {}},
        "loader": {"prefetch_batches": 0},
    }
    (folder / "run.yaml").write_text(yaml.safe_dump(content))
    (folder / "run").mkdir()
    for dp_rank in range(2):
        loader = make_dataloader(
            folder / "run.yaml", dp_rank=dp_rank, dp_size=2, micro_batch_size=2, global_batch_size=8
        )
        loader.log_start(folder / "run", 0)
        for number, batch in zip(range(12), loader, strict=False):
            np.savez(folder / f"{number // 2}.{number % 2}.{dp_rank}.npz", **batch)
        loader.close()
    return folder


def answer(capsys, *args):
    assert main([*map(str, args), "--json"]) == 0
    return json.loads(capsys.readouterr().out)


def test_plan_is_what_the_ranks_read(folder, capsys):
    config = folder / "run.yaml"
    words = ["query", config, "from samples", "--steps", "2:5"]
    by_log = answer(capsys, *words, "--run-log", folder / "run")["rows"]
    sizes = ["--global-batch-size", "8", "--micro-batch-size", "2", "--dp-size", "2"]
    assert answer(capsys, *words, *sizes)["rows"] == by_log
    keys = "step", "micro_batch", "rank", "row", "sample", "dataset"
    found = {tuple(row[key] for key in keys) for row in by_log}
    expected = set()
    for step, micro_batch, dp_rank in itertools.product((2, 3, 4), (0, 1), (0, 1)):
        batch = np.load(folder / f"{step}.{micro_batch}.{dp_rank}.npz")
        for slot, (sample, k) in enumerate(zip(batch["sample_index"].tolist(), batch["dataset_id"], strict=True)):
            expected.add((step, micro_batch, dp_rank, slot, sample, ["books", "web"][k]))
    assert found == expected


def test_answers_are_those_of_python(folder, capsys):
    run, common = open_run(folder / "run.yaml", folder / "run"), (folder / "run.yaml", "--run-log", folder / "run")
    samples = json.loads(json.dumps([one.to_dict() for one in trace_step(run, 3)]))
    assert [one["sample"] for one in samples] == list(range(24, 32))
    assert answer(capsys, "trace", *common, "--step", 3)["samples"] == samples
    assert answer(capsys, "trace", *common, "--sample", 26)["samples"] == [samples[2]]
    number = run.blend.datasets["web"].find_document("web-3")[0]
    document = json.loads(json.dumps([one.to_dict() for one in locate_documents(run, ["web-3"], 48)]))
    where = "'concept-5' in concepts"
    found = [one.to_dict() for one in locate_where(run, where, 48)]
    concept, first = (sorted(some, key=lambda one: one["sample"]) for some in (found, found[:2]))
    assert document
    assert concept
    for words, expected in (
        (["--document", "web-3"], document),
        (["--dataset", "web", "--document-number", number], document),
        (["--where", where], concept),
        (["--where", "5 in concepts"], concept),
        (["--where", where, "--limit", 2], first),
    ):
        assert answer(capsys, "locate", *common, "--samples", 48, *words)["seen"] == expected
