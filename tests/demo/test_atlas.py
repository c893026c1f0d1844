"""examples/atlas: killed and resumed it ends as it would have, and knows concepts of documents that it never saw."""

import importlib
import json
import subprocess
from statistics import mean

import pytest

import conceptloader as cl
from tests.dying import die_with_parent
from tests.scale import SOAK

STEPS = 200


@pytest.mark.soak
@pytest.mark.slow
@pytest.mark.timeout(1200)
@pytest.mark.skipif(not SOAK, reason="takes a minute or two: make soak runs it")
def test_it_learns_concepts_through_a_kill(checkout, tmp_path, monkeypatch):
    """On packages of the demo's corpus."""
    for folder in ("examples", "examples/demo"):
        monkeypatch.syspath_prepend(str(checkout / folder))
    corpus, shared = (importlib.import_module(name) for name in ("corpus", "shared"))
    modules = corpus.read_modules()[::3]
    packages = corpus.write_documents(
        [one for one in modules if one.dataset == "packages"], tmp_path / "packages.jsonl"
    )
    tokenizer = shared.train_tokenizer((module.text for module in modules), tmp_path / "tokenizer.json")
    options = {
        "vocabulary": {"concepts": corpus.CONCEPTS},
        "overlap": "union",
        "tokenizer": tokenizer,
        "eos": shared.END,
    }
    cl.build(packages, tmp_path / "data", **options)

    def run(out, **more):
        script = checkout / "examples/atlas/train.py", tmp_path / "data", tmp_path / out, STEPS
        done = subprocess.run(
            **shared.torchrun(2, *script, **more), preexec_fn=die_with_parent,
            stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, check=False,
        )  # fmt: skip
        assert (done.returncode == 0) == (not more), done.stdout[-4000:]

    run("run", DIES_AT=str(STEPS * 2 // 3))
    assert [(tmp_path / "run" / name).exists() for name in ("checkpoint.pt", "metrics.json")] == [True, False]
    for out in ("run", "whole"):
        run(out)
    found, whole = (json.loads((tmp_path / out / "metrics.json").read_text()) for out in ("run", "whole"))
    assert found == whole
    concepts = found["concepts"].values()
    assert len(concepts) > 10
    base = mean(one["base_rate"] for one in concepts)
    assert mean(one["average_precision"] for one in concepts) > 1.3 * base
    assert sum(one["average_precision"] > one["base_rate"] for one in concepts) > 0.8 * len(concepts)
    assert found["language_loss"] < 6.2  # ln 2048 is 7.6
