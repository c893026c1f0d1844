"""The main job on real text, end to end: build, train on two processes, be killed, resume on three, prove it.

    make demo            or: python examples/demo/run.py --output demo-output

Everything it writes is under the output folder; what an earlier demo left there is removed first.
"""

import argparse
import os
import platform
import shutil
import signal
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path

import corpus
import picture
import prepare
import proof
import psutil

import conceptloader as cl

HERE = Path(__file__).resolve().parent
STEPS, GLOBAL_BATCH = 240, 12
KILL_AFTER = 104  # the last checkpoint is then the one before step 90
LAST = 20  # steps over which losses are compared
KEPT = (30, 96, 180)  # steps whose tensors are compared with `trace`: before the kill, trained twice, after the resume
TIME_LIMIT = 900.0  # seconds for each start of the training


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--output", type=Path, default=HERE.parents[1] / "demo-output")
    output: Path = parser.parse_args().output
    empty(output)
    began = time.monotonic()
    config = build(output)
    run = output / "run"
    run.mkdir()
    with timed("train on 2 ranks, until SIGKILL"):
        train(config, run, ranks=2, micro_batch=3, kill_after=KILL_AFTER)
    with timed("resume on 3 ranks, to the end"):
        train(config, run, ranks=3, micro_batch=2)
    prove(output, config, run)
    say("in all", f"{time.monotonic() - began:.0f} s")


def empty(output: Path) -> None:
    """A new output folder, in place of one that an earlier demo made."""
    mark = output / ".conceptloader-demo"
    if output.exists() and any(output.iterdir()) and not mark.exists():
        raise SystemExit(f"{output}: found files that no demo wrote, expected a new folder; name another one")
    shutil.rmtree(output, ignore_errors=True)
    output.mkdir(parents=True)
    mark.touch()


def say(what: str, text: str) -> None:
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
        concepts = prepare.write_corpus(modules, output)
    kinds = Counter(module.dataset for module in modules)
    size = sum(len(module.text) for module in modules) / 1e6
    python = platform.python_version()
    say("corpus", f"Python {python}: {len(modules)} modules, {size:.1f} M characters; {invalid} files left out")
    with timed(f"train a tokenizer of {prepare.VOCAB_SIZE} tokens"):
        prepare.train_tokenizer((module.text for module in modules), output / "tokenizer.json")
    with timed("build 3 datasets"):
        for name in prepare.DATASETS:
            proof.command(
                "build", output / f"{name}.jsonl", "--out", output / "datasets" / name,
                "--tokenizer", output / "tokenizer.json", "--eos", prepare.END,
                "--vocabulary", output / "concepts.txt", "--overlap", "union",
            )  # fmt: skip
    for name in prepare.DATASETS:
        dataset = cl.open_dataset(output / "datasets" / name)
        say(name, f"{kinds[name]} documents, {dataset.num_tokens / 1e6:.2f} M tokens, {len(concepts)} concepts")
    return Path(shutil.copy(HERE / "demo.yaml", output))


def train(config: Path, run: Path, ranks: int, micro_batch: int, kill_after: int | None = None) -> None:
    """Start train.py with torchrun. Once rank 0 has recorded step `kill_after`, SIGKILL every process of it."""
    command = [
        sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc_per_node", str(ranks),
        str(HERE / "train.py"), str(config), "--output", str(run), "--steps", str(STEPS),
        "--global-batch-size", str(GLOBAL_BATCH), "--micro-batch-size", str(micro_batch), "--keep", *map(str, KEPT),
    ]  # fmt: skip
    environment = {"OMP_NUM_THREADS": "1", "GLOO_SOCKET_IFNAME": "lo", **os.environ}
    log_path = run / f"log-{ranks}-ranks.txt"
    with open(log_path, "w", encoding="utf-8") as log:
        process = subprocess.Popen(command, stdout=log, stderr=subprocess.STDOUT, env=environment)
        try:
            deadline = time.monotonic() + TIME_LIMIT
            while process.poll() is None and time.monotonic() < deadline:
                if kill_after is not None and recorded(run, 1, kill_after):
                    break
                time.sleep(0.02)
        finally:
            finished = process.poll()
            kill(process.pid)
            process.wait()
    if (finished is None) != (kill_after is not None) or finished:
        raise SystemExit(
            f"training on {ranks} ranks did not end as it should; {log_path}:\n{log_path.read_text()[-4000:]}"
        )


def recorded(run: Path, launch: int, step: int) -> bool:
    path = run / f"record.{launch}.0.jsonl"
    return path.exists() and f'"step": {step},' in path.read_text(encoding="utf-8")


def kill(pid: int) -> None:
    """SIGKILL a process and all of its children: nobody gets to say goodbye."""
    try:
        process = psutil.Process(pid)
        everyone = [process, *process.children(recursive=True)]
    except psutil.NoSuchProcess:
        return
    for one in everyone:
        with suppress(psutil.NoSuchProcess):
            one.send_signal(signal.SIGKILL)
    psutil.wait_procs(everyone[1:], timeout=10)


def prove(output: Path, config: Path, run: Path) -> None:
    """Compare what was recorded with what was planned; draw the picture."""
    launches = proof.read_record(run)
    for launch in launches:
        steps = [line["step"] for line in launch.lines]
        say(f"start {launch.number}", f"{launch.ranks} ranks, steps {min(steps)} to {max(steps)}")
    with timed("reference, without processes"):
        reference = proof.make_reference(config, STEPS * GLOBAL_BATCH)
    names = cl.load_config(config).names
    again = proof.check_record(launches, reference, names, STEPS, GLOBAL_BATCH)
    say("proof", f"{STEPS * GLOBAL_BATCH} samples planned; each trained exactly once, in its step, with its tokens")
    say("", f"{again} samples after the last checkpoint had been trained before the kill: the same ones")
    spans = sum(
        proof.check_tensors(run / "tensors" / str(launch.number), config, run, step)
        for launch in launches
        for step in KEPT
        if any(line["step"] == step for line in launch.lines)
    )
    say("conceptloader trace", f"steps {', '.join(map(str, KEPT))}: {spans} spans, equal to the tensors of the batches")
    show_when(config, run)
    base_rate = show_losses(launches, reference)
    phases = [(phase.at // GLOBAL_BATCH, dict(phase.weights)) for phase in cl.load_config(config).phases]
    picture.draw(output / "demo.png", launches, names, phases, base_rate)
    say("picture", str(output / "demo.png"))


def show_when(config: Path, run: Path) -> None:
    """An answer of `conceptloader locate`, as an example."""
    document, steps = "argparse", 10 * STEPS
    answer = proof.command(
        "locate", config, "--run-log", run, "--document", document, "--samples", steps * GLOBAL_BATCH
    )
    places = [one["places"][0] for one in answer["seen"]]
    first = ", ".join(f"{place['step']} (rank {place['dp_rank']})" for place in places[:4])
    say("conceptloader locate", f"{document}.py is seen {len(places)} times in {steps} steps, first in step {first}")


def show_losses(launches: Sequence[proof.Launch], reference: proof.Reference) -> float:
    """Losses of the first and the last steps; the concept head must beat the base rates of the concepts."""
    first, last = (0, 5), (STEPS - LAST, STEPS)
    language = [proof.mean_loss(launches, "language_loss", *steps) for steps in (first, last)]
    concept = [proof.mean_loss(launches, "concept_loss", *steps) for steps in (first, last)]
    base_rate = proof.base_rate_loss(reference, last[0] * GLOBAL_BATCH, last[1] * GLOBAL_BATCH)
    say("language loss", f"{language[0]:.2f} -> {language[1]:.2f} nats per token")
    say("concept loss", f"{concept[0]:.2f} -> {concept[1]:.2f} nats per token; predicting base rates: {base_rate:.2f}")
    proof.require(concept[1] < 0.8 * base_rate, "the concept head has not learned more than base rates")
    return base_rate


if __name__ == "__main__":
    main()
