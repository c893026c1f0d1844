"""A run that answers for its data, from text to receipts: build, train, be stopped, resume, publish, prove, check.

    python examples/receipt/run.py OUT

The corpus is Python's own standard library, every function a document. Two data-parallel ranks, in this process, train
a small model; then the run goes on with one. 40 documents get a receipt each, which verify_receipt.py checks.
"""

import ast
import json
import sys
import sysconfig
from pathlib import Path

import torch
import verify_receipt
from torch.nn.functional import cross_entropy

import conceptloader as cl
from conceptloader.receipts import make_receipt, prepare, state_run
from conceptloader.trace import audit, locate_document, open_run, read_record

PACKAGES = {"data": ("json", "csv", "html"), "tools": ("unittest", "logging")}
CONFIG = """
seq_len: 64
seed: 3
datasets:
  data: {path: data/data, weight: 2}
  tools: {path: data/tools, weight: 1}
phases:
  - {start: 600, weights: {data: 1, tools: 3}}
loader: {batch_log: true}
"""


def write_corpus(path: Path, packages: tuple[str, ...]) -> None:
    library, lines = Path(sysconfig.get_path("stdlib")), []
    for package in packages:
        for file in sorted([*library.glob(f"{package}.py"), *(library / package).glob("*.py")]):
            code, module = file.read_text("utf-8"), ".".join(file.relative_to(library).with_suffix("").parts)
            for node in ast.walk(ast.parse(code)):
                if isinstance(node, ast.FunctionDef):
                    text = "\n".join(code.split("\n")[node.lineno - 1 : node.end_lineno])
                    lines.append(json.dumps({"id": f"{module}:{node.lineno}.{node.name}", "text": text}) + "\n")
    path.write_text("".join(lines))


def train(config: Path, log: Path, model: torch.nn.Module, ranks: int, steps: int, state: dict | None = None) -> dict:
    """Some steps of 8 samples. Returns: the state of the loaders."""
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    sizes = {"dp_size": ranks, "micro_batch_size": 4, "global_batch_size": 8}
    loaders = [cl.make_dataloader(config, dp_rank=rank, **sizes) for rank in range(ranks)]
    for loader in loaders:
        if state is not None:
            loader.load_state_dict(state)
        loader.log_start(log, loader.steps)
    batches = [iter(loader) for loader in loaders]
    for _ in range(steps):
        for _ in range(8 // 4 // ranks):
            for one in batches:
                batch = next(one)
                losses = cross_entropy(model(batch["input_ids"]).transpose(1, 2), batch["labels"], reduction="none")
                (losses * batch["loss_mask"]).mean().backward()
        optimizer.step()
        optimizer.zero_grad()
    state = loaders[0].state_dict()
    for loader in loaders:
        loader.close()
    return state


def main(out: Path) -> None:
    out.mkdir(parents=True)
    for name, packages in PACKAGES.items():
        write_corpus(out / f"{name}.jsonl", packages)
        cl.build(out / f"{name}.jsonl", out / "data" / name, tokenizer="bytes", shard_input_bytes=1 << 16)
        prepare(out / "data" / name)
    config, log = out / "run.yaml", out / "log"
    config.write_text(CONFIG)

    torch.manual_seed(0)
    torch.set_num_threads(1)
    model = torch.nn.Sequential(torch.nn.Embedding(257, 32), torch.nn.Linear(32, 257))
    state = train(config, log, model, ranks=2, steps=60)
    train(config, log, model, ranks=2, steps=7, state=state)  # stopped before its checkpoint: these steps do not count
    train(config, log, model, ranks=1, steps=100, state=state)
    samples = 160 * 8

    run = open_run(config, log)
    report = audit(run, read_record(log / "conceptloader_batches"), digests=True)
    print(f"batch log: {report.samples} samples of steps {report.steps}, difference: {report.difference}")
    stated = state_run(config, log, samples)
    print(f"root of the run, to be published: {stated.root}")

    sizes, seen = [], 0
    for name, dataset in run.blend.datasets.items():
        for number in range(0, dataset.num_documents, dataset.num_documents // 20)[:20]:
            path = out / "receipt.json"
            path.write_text(json.dumps(make_receipt(stated, number, name), separators=(",", ":")))
            found = verify_receipt.verify(json.loads(path.read_text()), stated.root)
            expected = locate_document(run, number, samples, name)
            assert [one[:2] for one in found] == [[one.places[0].step, one.sample] for one in expected]
            sizes.append(path.stat().st_size)
            seen += len(found)
    print(f"{len(sizes)} receipts of {min(sizes)} to {max(sizes)} bytes, {seen} sightings, all as locate says")


if __name__ == "__main__":
    main(Path(sys.argv[1]))
