"""An Atlas-shaped corpus from this Python's own text, imported, trained on two processes, killed and resumed.

    python examples/atlas/run.py atlas-output

Needs `pip install '/path/to/the/checkout[torch,ingest]'`. Prints how well the model finds concepts in
documents that it never saw: the average precision of each, beside its base rate, which is that of guessing.
"""

import argparse
import json
import subprocess
import sys
from pathlib import Path

sys.path.append(str(Path(__file__).resolve().parents[1]))
import corpus
from convert import convert
from shared import torchrun, train_tokenizer

HERE = Path(__file__).resolve().parent
parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
parser.add_argument("folder", type=Path)
parser.add_argument("--steps", type=int, default=600)
parser.add_argument("--modules", type=int, default=400, help="of the standard library, at most")
args = parser.parse_args()
folder: Path = args.folder
folder.mkdir(parents=True)
tokenizer = train_tokenizer(corpus.write(folder / "atlas", args.modules), folder / "tokenizer.json")
print(convert(folder / "atlas", folder / "dataset", tokenizer))
script = HERE / "train.py", folder, "--steps", args.steps
if subprocess.run(**torchrun(2, *script, "--die-at", args.steps * 2 // 3), check=False).returncode == 0:
    raise SystemExit("the training was to be killed, and was not")
print("killed; started again", flush=True)
subprocess.run(**torchrun(2, *script), check=True)
metrics = json.loads((folder / "run/metrics.json").read_text())
print(f"held out: {metrics['spans']:,} spans, language loss {metrics['language_loss']:.3f} nats a token")
print(f"{'concept':28} {'base rate':>9} {'average precision':>18}")
for name, found in sorted(metrics["concepts"].items(), key=lambda item: -item[1]["average_precision"]):
    print(f"{name:28} {found['base_rate']:9.3f} {found['average_precision']:18.3f}")
