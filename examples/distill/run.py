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

sys.path.append(str(Path(__file__).resolve().parents[1] / "demo"))  # for the corpus, and a block of a model
import corpus
import matplotlib
import prepare
import torch
from gpt import GPT, language_losses, teacher_losses, train
from teacher import COLUMNS, trained, write
from torch import Tensor

import conceptloader as cl

matplotlib.use("Agg")
import matplotlib.pyplot as plt

WEIGHTS = {"student": 1, "more": 10}
SEQ_LEN, EVERY = 96, 20  # the student cuts other samples than the teacher


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
    teacher = trained(
        {name: {"path": str(paths[name]), "weight": WEIGHTS[name]} for name in ("student", "more")}, 2 * args.steps
    )
    for rank in range(2):  # they may as well run at the same time
        write(paths["student"], teacher, rank, ranks=2)
    for name in ("teacher_ids", "teacher_logprobs"):
        column = cl.column_writer(paths["student"], name, *COLUMNS[name]).finish()
        print(f"{name}: {column.dtype} {list(column.shape)}, {column.holes.tokens} tokens begin documents", flush=True)
    curves = {
        kind: student(paths, kind, args.steps) for kind in ("labels alone", "with the teacher's 8 most likely tokens")
    }
    curves["the teacher"] = [(0, (loss := held_out(teacher, paths))), (args.steps, loss)]
    for kind, curve in curves.items():
        print(f"held-out loss, {kind}: {curve[-1][1]:.3f} nats a token", flush=True)
    (args.output / "losses.json").write_text(json.dumps(curves))
    draw(args.output / "distill.png", curves)


def build(output: Path, documents: int) -> dict[str, Path]:
    """Three datasets: what the student reads, what nobody trains on, and what the teacher alone reads."""
    modules = [one for one in corpus.read_modules(find=lambda text: [])[0] if one.dataset != "encodings"]
    modules.sort(key=lambda one: hashlib.sha256(one.name.encode()).digest())
    held = documents + 20
    parts = {
        "student": modules[:documents],
        "held_out": modules[documents:held],
        "more": modules[held : 20 * documents],
    }
    prepare.train_tokenizer((one.text for one in parts["more"]), output / "tokenizer.json")
    for name, some in parts.items():
        rows = [json.dumps({"id": one.name, "text": one.text}) + "\n" for one in some]
        (output / f"{name}.jsonl").write_text("".join(rows), encoding="utf-8")
        cl.build(output / f"{name}.jsonl", output / name, tokenizer=str(output / "tokenizer.json"), eos=prepare.END)
    return {name: output / name for name in parts}


def student(paths: dict[str, Path], kind: str, steps: int) -> list[tuple[int, float]]:
    """(step, held-out loss) on the way."""
    torch.manual_seed(1)
    model, distils = GPT(SEQ_LEN, width=64, layers=1), kind != "labels alone"
    config = {"seq_len": SEQ_LEN, "seed": 9, "datasets": {"code": {"path": str(paths["student"])}}, "packing": {}}
    config["outputs"] = {"columns": dict.fromkeys(COLUMNS, "labels")} if distils else {}

    def losses(logits: Tensor, batch: dict[str, Any]) -> Tensor:
        own = language_losses(logits, batch)
        return 0.3 * own + 0.7 * teacher_losses(logits, batch) if distils else own

    curve = []
    with cl.make_dataloader(config, micro_batch_size=8) as loader:
        for step in train(model, loader, steps, losses):
            if (step + 1) % EVERY == 0:
                curve.append((step + 1, held_out(model, paths)))
    return curve


@torch.no_grad()
def held_out(model: GPT, paths: dict[str, Path]) -> float:
    config = {"seq_len": model.seq_len, "datasets": {"code": {"path": str(paths["held_out"])}}, "packing": {}}
    mean = cl.TokenMean()
    with cl.make_dataloader({**config, "order": "sequential"}, micro_batch_size=8) as loader:
        for batch, _ in zip(loader, range(16), strict=False):
            mean.add(language_losses(model(batch), batch), batch)
    return mean.finish()


def draw(path: Path, curves: dict[str, list[tuple[int, float]]]) -> None:
    figure, axes = plt.subplots(figsize=(7, 4), layout="constrained")
    for (kind, curve), color in zip(curves.items(), ("#444444", "#a4373a", "#3b6fb6"), strict=True):
        axes.plot(*zip(*curve, strict=True), color=color, label=kind, ls="--" if kind == "the teacher" else "-")
    axes.set(
        xlabel="step of the student", ylabel="held-out loss, nats a token", title="Same data, same order, same steps"
    )
    axes.spines[["top", "right"]].set_visible(False)
    axes.legend(frameon=False)
    figure.savefig(path, dpi=130)


if __name__ == "__main__":
    main()
