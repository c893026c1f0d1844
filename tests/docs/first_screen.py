"""The run that README's first screen asks about: python tests/docs/first_screen.py, in an empty directory.

Four data-parallel ranks train from step 12,280 on and stop before step 12,310, two steps after their last checkpoint;
two ranks resume it, with a third dataset from step 12,320 on. Three documents of the corpus are no text.
"""

import base64
import json
import random
from pathlib import Path

import torch
from torch.nn.functional import cross_entropy

import conceptloader as cl

WORDS = {
    "web": "the a model reads pages and learns words in order from them each day while it trains",
    "code": "def return for in if not else yield import from class self value name key list",
    "math": "let x be a prime then there are at most n of these such that by lemma two holds",
}
RUN = """\
seq_len: 64
metrics: {losses: true}
datasets:
  web: {path: data/web, weight: 0.7}
  code: {path: data/code, weight: 0.3}
"""
CHANGE = """\
  math: {path: data/math}
phases:
  - {at: 197_120, weights: {web: 0.5, code: 0.3, math: 0.2}}   # from step 12,320 on: 12,320 x 16 samples
"""
BATCH, FIRST, KILLED, LAST = 16, 12_280, 12_310, 12_330
UNREADABLE = (168, 1206, 1596)  # documents of step 12,300


def main():
    random.seed(2)
    for name, words in WORDS.items():
        pages = [" ".join(random.choices(words.split(), k=30))[:119] + "." for _ in range(2000)]
        if name == "web":
            for number in UNREADABLE:
                pages[number] = base64.b85encode(random.randbytes(96)).decode()
        rows = [{"id": f"{name}-{number}", "text": text} for number, text in enumerate(pages)]
        Path(f"{name}.jsonl").write_text("\n".join(map(json.dumps, rows)))
        cl.build(f"{name}.jsonl", f"data/{name}", tokenizer="bytes")
    Path("checkpoints").mkdir()
    Path("run.yaml").write_text(RUN)
    torch.manual_seed(0)
    model = torch.nn.Sequential(torch.nn.Embedding(257, 32), torch.nn.Linear(32, 257))
    saved = train(model, range(FIRST, KILLED), ranks=4)
    Path("run.yaml").write_text(RUN + CHANGE)
    train(model, range(KILLED - 2, LAST), ranks=2, state=saved)


def train(model, steps, ranks, state=None):
    """Returns the state of two steps before the end. The ranks take turns in this process."""
    sizes = {"dp_size": ranks, "micro_batch_size": BATCH // ranks, "global_batch_size": BATCH}
    begin = {} if state else {"consumed_samples": FIRST * BATCH}
    loaders = [cl.make_dataloader("run.yaml", dp_rank=rank, **sizes, **begin) for rank in range(ranks)]
    for loader in loaders:
        if state:
            loader.load_state_dict(state)
        loader.log_start("checkpoints", step=steps.start)
    optimizer = torch.optim.Adam(model.parameters(), lr=0.05)
    batches = [iter(loader) for loader in loaders]
    for _ in steps:
        for loader, rows in zip(loaders, batches, strict=True):
            batch = next(rows)
            losses = cross_entropy(model(batch["input_ids"]).transpose(1, 2), batch["labels"], reduction="none")
            loader.losses.add(losses, batch)
            cl.token_mean(losses, batch).backward()
            loader.observe_step()
        optimizer.step()
        optimizer.zero_grad()
    kept = loaders[0].state_dict_at((steps.stop - 2) * BATCH)
    for loader in loaders:
        loader.close()
    return kept


if __name__ == "__main__":
    main()
