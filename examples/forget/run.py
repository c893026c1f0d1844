"""Two runs again without something: one that forgets documents, and a twin that never saw a concept.

    python examples/forget/run.py --output forget-output            a minute on two cores

Both start from a checkpoint of the first run and train the same batches but for what is left out. The plot shows what
that was worth: how much higher the loss of just these documents is at the end.
"""

import argparse
import json
import re
import shutil
import subprocess
import sys
import sysconfig
from pathlib import Path
from typing import Any

import torch
from torch import nn
from torch.nn.functional import cross_entropy

import conceptloader as cl

STEPS, SAVE, BATCH, SEQ_LEN, MODULES = 80, 5, 8, 128, 40
FORGET, CONCEPT = ("this", "antigravity"), "warnings"
WORDS = re.compile(r"^(?:import|from) (\w+)", re.MULTILINE)


def build(folder: Path) -> None:
    """The beginnings of modules of Python's library; spans are its imports, concepts the names of what is imported."""
    paths = sorted(Path(sysconfig.get_path("stdlib")).glob("*.py"))[:MODULES]
    paths += [path for name in FORGET if (path := paths[0].with_name(f"{name}.py")) not in paths]
    concepts = set()
    with open(folder / "corpus.jsonl", "w", encoding="utf-8") as file:
        for path in paths:
            text = path.read_text("utf-8")[:2000]
            spans = [{"start": m.start(), "end": m.end(), "concepts": [m[1]]} for m in WORDS.finditer(text)]
            concepts |= {span["concepts"][0] for span in spans}
            file.write(json.dumps({"id": path.stem, "text": text, "spans": spans}) + "\n")
    cl.build(folder / "corpus.jsonl", folder / "corpus", tokenizer="bytes", vocabularies={"concepts": sorted(concepts)})
    (folder / "ids.txt").write_text("\n".join(FORGET))


class Model(nn.Module):
    """Each byte from the eight before it."""

    def __init__(self) -> None:
        super().__init__()
        self.embedding, self.past, self.head = nn.Embedding(257, 32), nn.Conv1d(32, 128, 8), nn.Linear(128, 257)

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        embedded = self.embedding(tokens).transpose(1, 2)
        past = self.past(nn.functional.pad(embedded, (7, 0))).relu()
        return self.head(past.transpose(1, 2))  # type: ignore[no-any-return]


def train(folder: Path, config: str, name: str, start: str | None = None) -> dict[int, Any]:
    """The weights after each step; checkpoints and the run log go to `name`."""
    torch.manual_seed(0)
    model, weights = Model(), dict[int, Any]()
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3)
    (folder / name).mkdir(exist_ok=True)
    with cl.make_dataloader(folder / config, micro_batch_size=BATCH, num_samples=STEPS * BATCH) as loader:
        if start is not None:
            saved = torch.load(folder / start)
            model.load_state_dict(saved["model"])
            optimizer.load_state_dict(saved["optimizer"])
            loader.load_state_dict(saved["loader"])
        loader.log_start(folder / name, loader.steps)
        for batch in loader:
            losses = cross_entropy(model(batch["input_ids"]).transpose(1, 2), batch["labels"], reduction="none")
            (losses * batch["loss_mask"]).mean().backward()
            optimizer.step()
            optimizer.zero_grad()
            weights[loader.steps] = {key: value.clone() for key, value in model.state_dict().items()}
            if loader.steps % SAVE == 0:
                state = {"model": model.state_dict(), "optimizer": optimizer.state_dict()}
                torch.save({**state, "loader": loader.state_dict()}, folder / name / f"step-{loader.steps:04d}.pt")
    return weights


def ask(folder: Path, *words: str) -> Any:
    """What a command answers. The text that it prints without --json is what a person reads."""
    command = [sys.executable, "-m", "conceptloader", *words, "--json"]
    return json.loads(subprocess.run(command, cwd=folder, check=True, stdout=subprocess.PIPE).stdout)


def compare(whole: dict[int, Any], again: dict[int, Any], touched: list[int]) -> None:
    """Up to the first step that is touched the two runs have the same bits, and from there on others."""
    for step, weights in again.items():
        same = all(torch.equal(value, whole[step][key]) for key, value in weights.items())
        assert same == (step <= touched[0]), step


def loss_of(folder: Path, weights: dict[str, Any], ids: set[str], concept: str | None = None) -> float:
    """The mean loss of tokens in some documents, each read alone; with a concept, of those in its spans."""
    model, dataset = Model(), cl.open_dataset(folder / "corpus")
    model.load_state_dict(weights)
    names, losses = dataset.vocabulary("concepts"), []
    for number in range(len(dataset)):
        if dataset.document_id(number) not in ids:
            continue
        start, stop = dataset.document_range(number)
        tokens = torch.from_numpy(dataset.read(start, stop)["tokens"].astype("int64"))
        wanted, spans = torch.full((len(tokens),), concept is None), dataset.spans("concepts", start, stop)
        for first, end, record in zip(spans.start, spans.end, spans.decode(), strict=True):
            wanted[first:end] |= concept in [names[one] for one in record]
        with torch.no_grad():
            losses.append(cross_entropy(model(tokens[None, :-1])[0], tokens[1:], reduction="none")[wanted[1:]])
    return torch.cat(losses).mean().item()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--output", type=Path, default=Path("forget-output"))
    folder: Path = parser.parse_args().output.resolve()
    folder.mkdir(parents=True)  # of its own
    build(folder)
    settings = f"seq_len: {SEQ_LEN}\ndatasets:\n  corpus: {{path: corpus}}\ntracks:\n  concepts: {{}}\n"
    (folder / "run.yaml").write_text(settings)
    whole = train(folder, "run.yaml", "whole")

    # 1. Documents that are to be forgotten.
    steps = ("--run-log", "whole", "--checkpoints", "whole")
    plan = ask(folder, "forget", "run.yaml", "--ids", "ids.txt", *steps, "--out", "without.yaml")
    touched = [one["step"] for one in plan["steps"]]
    start = plan["checkpoint"] and plan["checkpoint"]["path"]
    print(f"forget: steps {touched} of {STEPS}, again from {start or 'step 0'}: {plan['replayed']:.0%} of the run")
    if start is not None:  # what was before it is in the log of the first run
        (folder / "forgot").mkdir()
        shutil.copy2(folder / "whole/conceptloader_runs.jsonl", folder / "forgot")
    forgot = train(folder, "without.yaml", "forgot", start)
    compare(whole, forgot, touched)
    ask(folder, "forget", "without.yaml", "--ids", "ids.txt", "--run-log", "forgot", "--until", str(STEPS), "--check")

    # 2. A twin without a concept: the same tokens but for those in its spans. From where on, the comparison says.
    twin = settings + f"exclude:\n- {{at: %d, concept: {{track: concepts, name: {CONCEPT}}}, take: own}}\n"
    (folder / "twin.yaml").write_text(twin % 0)
    found = ask(folder, "trace", "run.yaml", *steps, "--compare", "twin.yaml")
    origin = found["checkpoint"] or {"path": None, "consumed_samples": 0}
    print(f"twin: steps {found['steps']}, again from {origin['path'] or 'step 0'}")
    (folder / "twin.yaml").write_text(twin % origin["consumed_samples"])
    without = train(folder, "twin.yaml", "twin", origin["path"])
    compare(whole, without, found["steps"])

    with open(folder / "corpus.jsonl", encoding="utf-8") as file:
        having = {line["id"] for line in map(json.loads, file) if any(CONCEPT in s["concepts"] for s in line["spans"])}
    others = {"the forgotten": (forgot, set(FORGET), None), f"imports of {CONCEPT}": (without, having, CONCEPT)}
    plot(folder, whole, others)


def plot(folder: Path, whole: dict[int, Any], others: dict[str, Any]) -> None:
    from matplotlib.figure import Figure

    figure = Figure(figsize=(9, 4), layout="constrained")
    for axes, (name, (again, *which)) in zip(figure.subplots(1, len(others)), others.items(), strict=True):
        for label, weights in (("first run", whole), ("without them", again)):
            saved = [step for step in range(SAVE, STEPS + 1, SAVE) if step in weights]
            losses = [loss_of(folder, weights[step], *which) for step in saved]
            axes.plot(saved, losses, marker="o", label=label)
            print(f"loss of {name}, {label}: {losses[-1]:.3f}")
        axes.set_title(f"loss of {name}")
        axes.set_xlabel("step")
        axes.legend()
    figure.savefig(folder / "worth.png")


if __name__ == "__main__":
    main()
