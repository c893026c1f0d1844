"""Distillation through columns: a teacher's values, written in one order, are read by a student in another.

    python examples/distill/run.py --output distill-output

A minute or two on a CPU: the demo's corpus (Python's standard library), a teacher, and two small students with the same
data in the same order, one of which has the teacher's 8 most likely tokens at each label. distill.png shows both.
"""

import argparse
import hashlib
import json
import sys
from pathlib import Path
from typing import Any

sys.path += [str(Path(__file__).resolve().parents[1] / name) for name in ("", "demo")]
import corpus
import matplotlib
import torch
import torch.nn.functional as F
from shared import END, GPT, language_losses, train, train_tokenizer
from torch import Tensor

import conceptloader as cl

matplotlib.use("Agg")
import matplotlib.pyplot as plt

TOP = 8
COLUMNS = {"teacher_ids": ("u2", TOP), "teacher_logprobs": ("f2", TOP)}
SEQ_LEN, TEACHER_LEN, VOCAB, EVERY = 96, 128, 2048, 20  # the student cuts other samples than the teacher


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--output", type=Path, required=True, help="a new folder")
    parser.add_argument(
        "--documents", type=int, default=12, help="that the student reads; the teacher, 20 times as many"
    )
    parser.add_argument("--steps", type=int, default=300, help="of the student; the teacher takes twice as many")
    args = parser.parse_args()
    args.output.mkdir(parents=True)
    torch.manual_seed(0)
    paths = build(args.output, args.documents)
    teacher = GPT(VOCAB, TEACHER_LEN, width=128, layers=2)
    datasets = {name: {"path": paths[name], "weight": weight} for name, weight in (("student", 1), ("more", 10))}
    with loader_of(TEACHER_LEN, datasets, 8) as loader:
        for _ in train(teacher, loader, own_loss, 2 * args.steps):
            pass
    for rank in range(2):  # they may as well run at the same time
        write(paths["student"], teacher, rank, ranks=2)
    for name in COLUMNS:
        column = cl.column_writer(paths["student"], name, *COLUMNS[name]).finish()
        print(f"{name}: {column.dtype} {list(column.shape)}, {column.holes.tokens} tokens begin documents", flush=True)
    curves = {
        "labels alone": student(paths, args.steps, False),
        "with the teacher's 8 most likely tokens": student(paths, args.steps, True),
    }
    curves["the teacher"] = [(0, (loss := held_out(teacher, paths))), (args.steps, loss)]
    for kind, curve in curves.items():
        print(f"held-out loss, {kind}: {curve[-1][1]:.3f} nats a token", flush=True)
    (args.output / "losses.json").write_text(json.dumps(curves))
    _, axes = plt.subplots(figsize=(7, 4), layout="constrained")
    for kind, curve in curves.items():
        axes.plot(*zip(*curve, strict=True), label=kind)
    axes.set(xlabel="step of the student", ylabel="held-out loss, nats a token", title="Same data, same order")
    axes.legend(frameon=False)
    plt.savefig(args.output / "distill.png", dpi=130)


def build(output: Path, documents: int) -> dict[str, str]:
    """Three datasets: what the student reads, what nobody trains on, and what the teacher alone reads."""
    modules = [one for one in corpus.read_modules(find=lambda text: [])[0] if one.dataset != "encodings"]
    modules.sort(key=lambda one: hashlib.sha256(one.name.encode()).digest())
    held, paths = documents + 20, dict[str, str]()
    parts = {"student": modules[:documents], "held_out": modules[documents:held], "more": modules[held:][: 19 * held]}
    tokenizer = train_tokenizer((one.text for one in parts["more"]), output / "tokenizer.json", VOCAB)
    for name, some in parts.items():
        rows, paths[name] = [json.dumps({"id": one.name, "text": one.text}) + "\n" for one in some], str(output / name)
        (output / f"{name}.jsonl").write_text("".join(rows), encoding="utf-8")
        cl.build(output / f"{name}.jsonl", paths[name], tokenizer=tokenizer, eos=END)
    return paths


def loader_of(seq_len: int, datasets: dict[str, Any], micro_batch_size: int, ranks: Any = None, **more: Any) -> Any:
    config = {"seq_len": seq_len, "datasets": datasets, "packing": {}, **more}
    return cl.make_dataloader(config, micro_batch_size=micro_batch_size, **(ranks or {}))


def own_loss(logits: Tensor, batch: dict[str, Any]) -> tuple[Tensor]:
    return (cl.token_mean(language_losses(logits, batch), batch),)


def distilled_loss(logits: Tensor, batch: dict[str, Any]) -> tuple[Tensor]:
    """With the cross entropy [B, S] with the teacher's distribution: its TOP tokens one by one, all others as one.

    `teacher_ids` and `teacher_logprobs` [B, S, TOP] stand at the labels, as `logits` do.
    """
    mine = F.log_softmax(logits, -1).gather(-1, batch["teacher_ids"].long())
    theirs = batch["teacher_logprobs"].float().exp()
    rest = (1 - theirs.sum(-1)).clamp(0, 1)
    mine_rest = torch.log1p(-mine.exp().sum(-1).clamp(max=1 - 1e-6))
    losses = -(theirs * mine).sum(-1) - rest * mine_rest
    return (cl.token_mean(0.3 * language_losses(logits, batch) + 0.7 * losses, batch),)


@torch.no_grad()
def write(path: str, model: GPT, rank: int, ranks: int) -> None:
    """One rank's part of the columns. Started again after a kill, it computes what is not there yet."""
    sizes = {"dp_rank": rank, "dp_size": ranks, "last_batch": "wrap"}
    loader = loader_of(TEACHER_LEN, {"code": {"path": path}}, 16, sizes, order="sequential")
    ids, logprobs = (cl.column_writer(path, name, *COLUMNS[name], loader=loader) for name in COLUMNS)
    with loader, ids, logprobs:
        for batch in loader:
            if not (ids.has(batch) and logprobs.has(batch)):
                best = torch.log_softmax(model(batch), -1).topk(TOP)
                ids.write(batch, best.indices)
                logprobs.write(batch, best.values)


def student(paths: dict[str, str], steps: int, distils: bool) -> list[tuple[int, float]]:
    """(step, held-out loss) on the way."""
    torch.manual_seed(1)
    model, curve = GPT(VOCAB, SEQ_LEN, width=64, layers=1), list[tuple[int, float]]()
    outputs = {"columns": dict.fromkeys(COLUMNS, "labels")} if distils else {}
    with loader_of(SEQ_LEN, {"code": {"path": paths["student"]}}, 8, seed=9, outputs=outputs) as loader:
        for step, _, _ in train(model, loader, distilled_loss if distils else own_loss, steps):
            if step % EVERY == 0:
                curve.append((step, held_out(model, paths)))
    return [*curve, (steps, held_out(model, paths))]


@torch.no_grad()
def held_out(model: GPT, paths: dict[str, str]) -> float:
    mean = cl.TokenMean()
    with loader_of(model.seq_len, {"code": {"path": paths["held_out"]}}, 8, order="sequential") as loader:
        for batch, _ in zip(loader, range(16), strict=False):
            mean.add(language_losses(model(batch), batch), batch)
    return mean.finish()


if __name__ == "__main__":
    main()
