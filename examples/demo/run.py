"""The main job on real text, end to end: build, train on two processes, be killed, resume on three, prove it.

    make demo            or: python examples/demo/run.py --output demo-output

Everything it writes is under the output folder; what an earlier demo left there is removed first.
"""

import argparse
import platform
import shutil
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

sys.path.append(str(Path(__file__).resolve().parents[1]))
import corpus
import matplotlib
import numpy as np
import proof
import psutil
from shared import END, torchrun, train_tokenizer

import conceptloader as cl

matplotlib.use("Agg")
import matplotlib.pyplot as plt

HERE = Path(__file__).resolve().parent
STEPS, GLOBAL_BATCH = 240, 12
KILL_AFTER = 104  # the last checkpoint is then the one before step 90
LAST = 20  # steps over which losses are compared
KEPT = (30, 96, 180)  # steps whose tensors are compared with `trace`: before the kill, trained twice, after the resume
TIME_LIMIT = 900.0  # seconds for each start of the training
MEAN = 6  # steps that the picture takes together


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--output", type=Path, default=HERE.parents[1] / "demo-output")
    output: Path = parser.parse_args().output
    empty(output)
    with timed("in all"):
        config, run = build(output), output / "run"
        run.mkdir()
        with timed("train on 2 ranks, until SIGKILL"):
            train(config, run, ranks=2, micro_batch=3, kill_after=KILL_AFTER)
        with timed("resume on 3 ranks, to the end"):
            train(config, run, ranks=3, micro_batch=2)
        prove(output, config, run)


def empty(output: Path) -> None:
    """A new output folder, in place of one that an earlier demo made."""
    mark = output / ".conceptloader-demo"
    if output.exists() and any(output.iterdir()) and not mark.exists():
        raise SystemExit(f"{output}: found files that no demo wrote, expected a new folder; name another one")
    shutil.rmtree(output, ignore_errors=True)
    output.mkdir(parents=True)
    mark.touch()


def say(what: str, text: object) -> None:
    print(f"{what:>34}  {text}", flush=True)


@contextmanager
def timed(what: str) -> Iterator[None]:
    began = time.monotonic()
    yield
    say(what, f"{time.monotonic() - began:.1f} s")


def build(output: Path) -> Path:
    """Corpus, tokenizer and three datasets; returns the configuration."""
    with timed("read the standard library"):
        modules, invalid = corpus.read_modules()
        concepts = corpus.write_corpus(modules, output)
    kinds = Counter(module.dataset for module in modules)
    size = sum(len(module.text) for module in modules) / 1e6
    python = platform.python_version()
    say("corpus", f"Python {python}: {len(modules)} modules, {size:.1f} M characters; {invalid} files left out")
    with timed("train a tokenizer of 2048 tokens"):
        tokenizer = train_tokenizer((module.text for module in modules), output / "tokenizer.json")
    with timed("build 3 datasets"):
        for name in corpus.DATASETS:
            proof.command(
                "build", output / f"{name}.jsonl", "--out", output / "datasets" / name, "--tokenizer", tokenizer,
                "--eos", END, "--vocabulary", output / "concepts.txt", "--overlap", "union",
            )  # fmt: skip
    for name in corpus.DATASETS:
        dataset = cl.open_dataset(output / "datasets" / name)
        say(name, f"{kinds[name]} documents, {dataset.num_tokens / 1e6:.2f} M tokens, {len(concepts)} concepts")
    return Path(shutil.copy(HERE / "demo.yaml", output))


def train(config: Path, run: Path, ranks: int, micro_batch: int, kill_after: int | None = None) -> None:
    """Start train.py with torchrun. Once rank 0 has recorded step `kill_after`, SIGKILL every process of it."""
    sizes = "--global-batch-size", GLOBAL_BATCH, "--micro-batch-size", micro_batch
    command = torchrun(ranks, HERE / "train.py", config, run, "--steps", STEPS, *sizes, "--keep", *KEPT)
    log, record = run / f"log-{ranks}-ranks.txt", run / "record.1.0.jsonl"
    with open(log, "w", encoding="utf-8") as file:
        process = psutil.Popen(**command, stdout=file, stderr=subprocess.STDOUT)
        try:
            deadline = time.monotonic() + TIME_LIMIT
            while process.poll() is None and time.monotonic() < deadline:
                if kill_after and record.exists() and f'"step": {kill_after},' in record.read_text(encoding="utf-8"):
                    break
                time.sleep(0.02)
        finally:
            finished, everyone = process.poll(), [process]
            with suppress(psutil.NoSuchProcess):
                everyone += process.children(recursive=True)
            for one in everyone:  # nobody gets to say goodbye
                with suppress(psutil.NoSuchProcess):
                    one.kill()
            psutil.wait_procs(everyone, timeout=10)
    if (finished is None) != (kill_after is not None) or finished:
        raise SystemExit(f"training on {ranks} ranks did not end as it should; {log}:\n{log.read_text()[-4000:]}")


def prove(output: Path, config: Path, run: Path) -> None:
    """Compare what was recorded with what was planned; draw the picture."""
    launches, samples = proof.read_record(run), STEPS * GLOBAL_BATCH
    for launch in launches:
        last = launch.lines[-1]["step"]
        say(f"start {launch.number}", f"{launch.ranks} ranks, steps {launch.lines[0]['step']} to {last}")
    with timed("reference, without processes"):
        planned, shares = proof.make_reference(config, samples)
    read = cl.load_config(config)
    again = proof.check_record(launches, planned, read.names, GLOBAL_BATCH)
    say("proof", f"{samples} samples planned; each trained exactly once, in its step, with its tokens")
    say("", f"{again} samples after the last checkpoint had been trained before the kill: the same ones")
    spans = sum(
        proof.check_tensors(run / "tensors" / str(launch.number), config, run, step)
        for launch in launches
        for step in KEPT
        if launch.first <= step <= launch.lines[-1]["step"]
    )
    say("conceptloader trace", f"steps {', '.join(map(str, KEPT))}: {spans} spans, equal to the tensors of the batches")
    document, steps = "argparse", 10 * STEPS
    answer = proof.command("locate", config, "--run-log", run, "--document", document, "--samples", 10 * samples)
    places = [one["places"][0] for one in answer["seen"]]
    first = ", ".join(f"{place['step']} (rank {place['dp_rank']})" for place in places[:4])
    say("conceptloader locate", f"{document}.py is seen {len(places)} times in {steps} steps, first in step {first}")
    base_rate = proof.base_rate_loss(shares[-LAST * GLOBAL_BATCH :])
    for kind, more in ("language", ""), ("concept", f"; predicting base rates: {base_rate:.2f}"):
        early, late = (proof.mean_loss(launches, f"{kind}_loss", *x) for x in ((0, 5), (STEPS - LAST, STEPS)))
        say(f"{kind} loss", f"{early:.2f} -> {late:.2f} nats per token{more}")
    proof.require(late < 0.8 * base_rate, "the concept head has not learned more than base rates")
    draw(output / "demo.png", launches, read.names, read.phases, base_rate)
    say("picture", output / "demo.png")


def draw(path: Path, launches: Sequence[Any], names: Sequence[str], phases: Sequence[Any], base_rate: float) -> None:
    """What was blended and what was learned, a dot for some steps each, with the kill and the resume."""
    figure, (blend, loss) = plt.subplots(2, 1, figsize=(9, 7), sharex=True, height_ratios=[2, 3], layout="constrained")
    lines = proof.counting(launches)
    counts = np.zeros((STEPS, len(names)))
    for line in lines:
        np.add.at(counts[line["step"]], line["datasets"], 1)
    shares, middles = counts.reshape(-1, MEAN, len(names)).mean(1) / GLOBAL_BATCH, np.arange(MEAN / 2, STEPS, MEAN)
    starts = [phase.at / GLOBAL_BATCH for phase in phases]
    for name, share in zip(names, shares.T, strict=True):
        (dots,) = blend.plot(middles, share, ".", label=name)
        weights = [phase.weights[name] for phase in phases]
        blend.step([*starts, STEPS], [*weights, weights[-1]], color=dots.get_color(), where="post")
    for kind, color in (("language_loss", "#444444"), ("concept_loss", "#a4373a")):
        means = [proof.mean_loss(launches, kind, step, step + MEAN) for step in range(0, STEPS, MEAN)]
        loss.plot(middles, means, color=color, label=kind.replace("_", " "))
    loss.axhline(base_rate, color="#a4373a", lw=1, ls="--", label="concepts by base rates alone")
    killed, resumed = launches[0].lines[-1]["step"], launches[1].first
    for axes, title in (
        (blend, f"What was blended: weights (lines) and samples trained (dots, {MEAN} steps each)"),
        (loss, f"What was learned, nats per token: SIGKILL in step {killed}, resumed from step {resumed} (grey)"),
    ):
        axes.axvspan(resumed, killed + 1, color="0.9", lw=0)
        axes.set_title(title, fontsize=10, loc="left")
        axes.set_ylim(0)
        axes.legend(frameon=False, fontsize=9)
    loss.set_xlabel("step")
    figure.savefig(path, dpi=130)


if __name__ == "__main__":
    main()
