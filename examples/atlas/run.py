"""An Atlas-shaped corpus from this Python's own text, imported, trained on two processes, killed and resumed.

    python examples/atlas/run.py atlas-output

Needs `pip install '/path/to/the/checkout[torch,ingest]'`. Prints how well the model finds concepts in
documents that it never saw: the average precision of each, beside its base rate, which is that of guessing.
"""

import argparse
import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import corpus
from convert import convert

HERE = Path(__file__).resolve().parent


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--steps", type=int, default=600)
    parser.add_argument("--modules", type=int, default=400, help="of the standard library, at most")
    args = parser.parse_args()
    args.folder.mkdir(parents=True)
    print(corpus.write(args.folder / "atlas", args.modules))
    corpus.train_tokenizer(args.folder / "atlas/fineweb-atlas-documents", args.folder / "tokenizer.json")
    print(convert(args.folder / "atlas", args.folder / "dataset", str(args.folder / "tokenizer.json")))
    if train(args.folder, args.steps, "--die-at", str(args.steps * 2 // 3)) == 0:
        raise SystemExit("the training was to be killed, and was not")
    print("killed; started again")
    if train(args.folder, args.steps):
        raise SystemExit("the training did not go on")
    show(json.loads((args.folder / "run/metrics.json").read_text()))


def train(folder: Path, steps: int, *more: str) -> int:
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc_per_node", "2"]
    command += [str(HERE / "train.py"), str(folder), "--steps", str(steps), *more]
    environment = {"OMP_NUM_THREADS": "1", "GLOO_SOCKET_IFNAME": "lo", **os.environ}
    return subprocess.run(command, env=environment, check=False).returncode


def show(metrics: dict[str, Any]) -> None:
    print(f"held out: {metrics['spans']:,} spans, language loss {metrics['language_loss']:.3f} nats a token")
    print(f"{'concept':28} {'base rate':>9} {'average precision':>18}")
    for name, found in sorted(metrics["concepts"].items(), key=lambda item: -item[1]["average_precision"]):
        print(f"{name:28} {found['base_rate']:9.3f} {found['average_precision']:18.3f}")


if __name__ == "__main__":
    main()
