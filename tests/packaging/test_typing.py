"""What type checkers, editors and help() know of the public names."""

import ast
import importlib
import subprocess
import sys
from typing import get_args

import pytest
import torch

import conceptloader as cl
from conceptloader.kernels.arrays import IntKey, TensorKey
from conceptloader.testing import random_documents, write_dataset
from tests.raises import cells

GOOD = """\
from typing import Any

import conceptloader as cl
from conceptloader.format.read.dataset import Windows

def plain(batch: dict[str, Any]) -> list[str]:
    return [name for name, value in batch.items() if value.dtype]

loader = cl.make_dataloader("run.yaml", micro_batch_size=4)
for batch in loader:
    for sample in cl.decode(batch, loader):
        text: str = sample.text
    longest: int = batch["max_seqlen"]
    batch["input_ids"].shape, batch["concepts_ids"].shape, batch[plain(batch)[0]].shape
    spans = cl.concepts.track(batch, "concepts").spans
    cl.concepts.token_concepts({**batch, "more": 3}, "concepts", k=2)
    batch["more"] = 3
    copied: cl.TensorBatch = batch
    break
summary = cl.build(["corpus.jsonl"], "data", tokenizer="bytes", vocabulary={"concepts": ["red"]})
tokens: int = summary.tokens
manifest = cl.adopt(["a.bin"], "b")
done = cl.annotate("b", ["spans.jsonl"], "c", track="t")
run: cl.trace.Run = cl.trace.open_run("run.yaml")
windows: Windows = cl.open_dataset("data").windows(8)
try:
    cl.verify("data")
except cl.ConceptloaderError as error:
    print(error, cl.errors.ReadError, len(cl.Mixture([3]).sizes))
"""


def mypy(script, checkout, folder):
    """What `mypy`, which is strict here, says of a user's script. `make lint` has left what it knows of all others."""
    file = folder / "script.py"
    file.write_text(script)
    done = subprocess.run([sys.executable, "-m", "mypy", file], cwd=checkout, capture_output=True, text=True)
    assert done.returncode in (0, 1), done.stdout + done.stderr
    return "\n".join(
        f"script.py{line.partition('script.py')[2]}" for line in done.stdout.splitlines() if "script.py:" in line
    )


BAD = """
loader = cl.make_dataloader("run.yaml", micro_batch_size="4") | arg-type
loader = cl.make_dataloader("run.yaml", micro_batch=4) | call-arg
cl.make_dataloadre | attr-defined
cl.build(["a"], 3, tokenizer="bytes") | arg-type
cl.Mixture(["3"]) | list-item
cl.open_dataset("a").windows("8") | arg-type
cl.EpochSampler(10, rank='1') | arg-type
wrong: str = batch["max_seqlen"] | assignment
batch[3] | call-overload
"""


@pytest.mark.slow
@pytest.mark.timeout(300)
def test_a_users_script_is_checked(checkout, tmp_path):
    bad = dict(cells(BAD))
    script = GOOD + "".join(f"{line}\n" for line in bad)
    lines = mypy(script, checkout, tmp_path).splitlines()
    errors = [line for line in lines if ": error: " in line]
    first = GOOD.count("\n") + 1
    assert {int(line.split(":")[1]) for line in errors} == set(range(first, first + len(bad))), "\n".join(lines)
    for number, kind in enumerate(bad.values(), first):
        assert any(line.startswith(f"script.py:{number}:") and f"[{kind}]" in line for line in errors), errors


def test_the_keys_that_editors_complete_are_those_of_a_batch(tmp_path):
    write_dataset(tmp_path, random_documents(20, tracks={"quality": 3}))
    outputs = dict.fromkeys(("document_ids", "cu_seqlens", "shared_labels", "sample_seed"), True)
    outputs |= {"loss_weight": []}
    config = {"seq_len": 8, "datasets": {"a": {"path": str(tmp_path)}}, "outputs": outputs}
    with cl.TrainedLoader(config, micro_batch_size=2) as loader:
        batch = next(iter(loader))
    assert type(batch) is dict  # a pytree, and what torch.load takes by itself
    for kind, keys in ((torch.Tensor, TensorKey), (int, IntKey)):
        assert {name for name, value in batch.items() if isinstance(value, kind)} == set(get_args(keys))


def test_checkers_and_the_import_at_run_time_know_the_same_names(checkout):
    tree = ast.parse((checkout / "conceptloader/__init__.py").read_text())
    (block,) = [node for node in tree.body if isinstance(node, ast.If) and isinstance(node.test, ast.Name)]
    static = {
        alias.name: node.module for node in block.body if isinstance(node, ast.ImportFrom) for alias in node.names
    }
    assert {*static, "__version__"} == set(cl.__all__)
    for name, module in static.items():
        assert getattr(cl, name) is getattr(importlib.import_module(str(module)), name), name
    assert cl.__all__ == sorted(cl.__all__)
