"""Distillation through columns: a teacher's values, written in one order, are read by a student in another.

    python examples/distill/run.py distill-output

A minute or two on a CPU: the demo's corpus (Python's standard library), a teacher, and two small students with the same
data in the same order, one of which has the teacher's 8 most likely tokens at each label. It prints the loss of each on
documents that none has read. Further arguments: the number of the student's documents, the teacher has 20 times as
many; and of its steps, half of the teacher's.
"""

import hashlib
import json
import sys
from pathlib import Path

sys.path += [str(Path(__file__).resolve().parents[1] / name) for name in ("", "demo")]
import corpus
import torch
import torch.nn.functional as F
from shared import END, GPT, language_losses, train, train_tokenizer

import conceptloader as cl

TOP = 8
COLUMNS = {"teacher_ids": ("u2", TOP), "teacher_logprobs": ("f2", TOP)}
SEQ_LEN, TEACHER_LEN, VOCAB = 96, 128, 2048  # the student cuts other samples than the teacher


def main():
    output, documents, steps = Path(sys.argv[1]), *map(int, [*sys.argv[2:], 12, 300][:2])
    output.mkdir(parents=True)
    torch.manual_seed(0)
    paths = build(output, documents)
    teacher = GPT(VOCAB, TEACHER_LEN, width=128, layers=2)
    with loader_of(TEACHER_LEN, paths["more"]) as loader:
        for _ in train(teacher, loader, own_loss, 2 * steps):
            pass
    for rank in range(2):  # they may as well run at the same time
        write(paths["student"], teacher, rank, ranks=2)
    for name in COLUMNS:
        column = cl.column_writer(paths["student"], name, *COLUMNS[name]).finish()
        print(f"{name}: {column.dtype} {list(column.shape)}, {column.holes.tokens} tokens begin documents")
    losses = {
        "labels alone": student(paths, steps, own_loss),
        f"with the teacher's {TOP} most likely tokens": student(paths, steps, distilled_loss, columns=COLUMNS),
        "the teacher": held_out(teacher, paths),
    }
    for kind, loss in losses.items():
        print(f"held-out loss, {kind}: {loss:.3f} nats a token")
    (output / "losses.json").write_text(json.dumps(losses))


def build(output, documents):
    """Three datasets: what the student reads, what nobody trains on, and what the teacher alone reads."""
    modules = [one for one in corpus.read_modules(find=lambda text: []) if one.dataset != "encodings"]
    modules.sort(key=lambda one: hashlib.sha256(one.name.encode()).digest())
    held, paths = documents + 20, {}
    parts = {"student": modules[:documents], "held_out": modules[documents:held], "more": modules[held : 20 * held]}
    tokenizer = train_tokenizer((one.text for one in parts["more"]), output / "tokenizer.json", VOCAB)
    for name, some in parts.items():
        file, paths[name] = corpus.write_documents(some, output / f"{name}.jsonl"), str(output / name)
        cl.build(file, paths[name], tokenizer=tokenizer, eos=END, ignore_column=["spans"])
    return paths


def loader_of(seq_len, path, rank=0, ranks=1, last_batch=None, **more):
    config = {"seq_len": seq_len, "datasets": {"code": {"path": path}}, "packing": {}, **more}
    return cl.make_dataloader(config, micro_batch_size=8, dp_rank=rank, dp_size=ranks, last_batch=last_batch)


def own_loss(logits, batch):
    return (cl.token_mean(language_losses(logits, batch), batch),)


def distilled_loss(logits, batch):
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
def write(path, model, rank, ranks):
    """One rank's part of the columns. Started again after a kill, it computes what is not there yet."""
    loader = loader_of(TEACHER_LEN, path, rank, ranks, "wrap", order="sequential")
    ids, logprobs = (cl.column_writer(path, name, *COLUMNS[name], loader=loader) for name in COLUMNS)
    with loader, ids, logprobs:
        for batch in loader:
            if not (ids.has(batch) and logprobs.has(batch)):
                best = torch.log_softmax(model(batch), -1).topk(TOP)
                ids.write(batch, best.indices)
                logprobs.write(batch, best.values)


def student(paths, steps, loss, columns=()):
    """Its held-out loss."""
    torch.manual_seed(1)
    model, outputs = GPT(VOCAB, SEQ_LEN, width=64, layers=1), {"columns": dict.fromkeys(columns, "labels")}
    with loader_of(SEQ_LEN, paths["student"], seed=9, outputs=outputs) as loader:
        for _ in train(model, loader, loss, steps):
            pass
    return held_out(model, paths)


@torch.no_grad()
def held_out(model, paths):
    mean = cl.TokenMean()
    with loader_of(model.seq_len, paths["held_out"], order="sequential") as loader:
        for batch, _ in zip(loader, range(16), strict=False):
            mean.add(language_losses(model(batch), batch), batch)
    return mean.finish()


if __name__ == "__main__":
    main()
