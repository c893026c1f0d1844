"""The main job on real text, end to end: build, train on two processes, be killed, resume on three, prove it.

    make demo            or: python examples/demo/run.py demo-output

Everything it writes is under the output folder; what an earlier demo left there is removed first.
"""

import shutil
import subprocess
import sys
from pathlib import Path

sys.path.append(str(Path(__file__).resolve().parents[1]))
import corpus
import proof
from proof import GLOBAL_BATCH, STEPS
from shared import END, torchrun, train_tokenizer

import conceptloader as cl
from conceptloader.cli import main as conceptloader

HERE = Path(__file__).resolve().parent
LAST = 20  # steps over which losses are compared


def main():
    output = Path([*sys.argv, HERE.parents[1] / "demo-output"][1])
    empty(output)
    config, run = build(output), output / "run"
    run.mkdir()
    say("training", "on 2 ranks, until SIGKILL; then on 3 ranks, to the end")
    train(config, run, ranks=2, DIES_AT="104")  # the last checkpoint is then the one before step 90
    train(config, run, ranks=3)
    prove(config, run)


def empty(output):
    """A new output folder, in place of one that an earlier demo made."""
    mark = output / ".conceptloader-demo"
    if output.exists() and any(output.iterdir()) and not mark.exists():
        raise SystemExit(f"{output}: found files that no demo wrote, expected a new folder; name another one")
    shutil.rmtree(output, ignore_errors=True)
    output.mkdir(parents=True)
    mark.touch()


def say(what, text):
    print(f"{what:>10}  {text}", flush=True)


def build(output):
    """Tokenizer and three datasets; returns the configuration."""
    modules = corpus.read_modules()
    tokenizer = train_tokenizer((module.text for module in modules), output / "tokenizer.json")
    for name in corpus.DATASETS:
        documents = [module for module in modules if module.dataset == name]
        file = corpus.write_documents(documents, output / f"{name}.jsonl")
        options = {"tokenizer": tokenizer, "eos": END, "vocabulary": {"concepts": corpus.CONCEPTS}, "overlap": "union"}
        cl.build(file, output / "datasets" / name, **options)
        tokens = cl.open_dataset(output / "datasets" / name).num_tokens
        say("built", f"{name}: {len(documents)} modules of Python's standard library, {tokens / 1e6:.2f} M tokens")
    return Path(shutil.copy(HERE / "demo.yaml", output))


def train(config, run, ranks, **environment):
    """Start train.py with torchrun; with DIES_AT it has to fail."""
    log = run / f"log-{ranks}-ranks.txt"
    with open(log, "w", encoding="utf-8") as file:
        command = torchrun(ranks, HERE / "train.py", config, run, **environment)
        ended = subprocess.run(**command, stdout=file, stderr=subprocess.STDOUT, timeout=900, check=False)
    if bool(ended.returncode) != bool(environment):
        raise SystemExit(f"training on {ranks} ranks did not end as it should; {log}:\n{log.read_text()[-4000:]}")


def prove(config, run):
    """Compare what was recorded with what was planned."""
    launches = proof.read_record(run)
    first, second = launches
    say("killed", f"in step {first.lines[-1]['step']}; resumed from step {second.first} on {second.ranks} ranks")
    again = proof.check_record(launches, proof.make_reference(config), cl.load_config(config).names, GLOBAL_BATCH)
    samples = STEPS * GLOBAL_BATCH
    say("proof", f"{samples} samples planned; each trained exactly once, in its step, with its tokens and concepts")
    say("", f"{again} samples after the last checkpoint had been trained before the kill: the same ones")
    for kind in ("language", "concept"):
        early, late = (proof.mean_loss(launches, f"{kind}_loss", *x) for x in ((0, LAST), (STEPS - LAST, STEPS)))
        say("learned", f"{kind} loss {early:.2f} -> {late:.2f} nats per token")
        proof.require(late < 0.8 * early, f"the {kind} loss has not fallen")
    command = "locate", config, "--run-log", run, "--document", "argparse", "--samples", samples, "--limit", 4
    conceptloader([*map(str, command)])


if __name__ == "__main__":
    main()
