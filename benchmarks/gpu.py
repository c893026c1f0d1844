"""What the loader costs a training: a small GPT with batches of the loader, and with one batch that never changes.

    PYTHONPATH=.:benchmarks python benchmarks/gpu.py [--device cuda] [--toy]

Both are trained in turn, round by round, and compared by medians: `overhead` of a step, and `waited`, for how long
Python waits for a batch, which costs nothing as long as the device has work. Without a CUDA device the same runs on the
processor, where loader and model share the cores: that shows that it works, and no more.
"""

import argparse
import json
import statistics
import sys
import time
from itertools import repeat
from pathlib import Path

sys.path.append(str(Path(__file__).resolve().parents[1] / "examples"))
import torch
from data import corpus
from shared import GPT, language_losses

import conceptloader as cl

TOY = {"layers": 2, "width": 64, "heads": 2, "seq_len": 64, "vocab": 50_000, "batch": 2, "steps": 4, "rounds": 2}


def arguments(argv=None):
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    defaults = {"layers": 12, "width": 768, "heads": 12, "seq_len": 1024, "vocab": 50_304, "batch": 16, "steps": 40}
    for name, value in {**defaults, "rounds": 5, "threads": 2, "tokens": 1 << 26}.items():
        parser.add_argument(f"--{name.replace('_', '-')}", type=int, default=value)
    parser.add_argument("--toy", action="store_true", help="sizes for a processor, in seconds")
    found = parser.parse_args(argv)
    if found.toy:
        vars(found).update(TOY, tokens=1 << 16)
    return found


class Training:
    """One model, trained on whatever batches it is given."""

    def __init__(self, asked):
        self.device = torch.device(asked.device)
        self.on_cuda = self.device.type == "cuda"
        torch.manual_seed(0)
        self.model = GPT(asked.vocab, asked.seq_len, asked.width, asked.layers, asked.heads).to(self.device)
        self.optimizer = torch.optim.AdamW(self.model.parameters(), lr=3e-4, fused=self.on_cuda)
        self.loss = float("nan")

    def step(self, batch):
        with torch.autocast(self.device.type, torch.bfloat16, enabled=self.on_cuda):
            loss = cl.token_mean(language_losses(self.model(batch), batch), batch)
        loss.backward()
        self.optimizer.step()
        self.optimizer.zero_grad(set_to_none=True)
        return loss

    def run(self, batches, steps):
        """Milliseconds a step: `step`, `waited`."""
        waited = 0.0
        self.wait()
        begin = time.perf_counter()
        for _ in range(steps):
            asked = time.perf_counter()
            batch = next(batches)
            waited += time.perf_counter() - asked
            loss = self.step(batch)
        self.wait()
        found = {"step": (time.perf_counter() - begin) * 1e3 / steps, "waited": waited * 1e3 / steps}
        self.loss = float(loss.detach())
        return found

    def wait(self):
        if self.on_cuda:
            torch.cuda.synchronize(self.device)


def main(argv=None):
    asked = arguments(argv)
    if asked.toy:
        torch.set_num_threads(1)
    path = corpus(f"gpu-{asked.tokens}", tokens=asked.tokens)
    config = {"seq_len": asked.seq_len, "datasets": {"web": {"path": path}}, "loader": {"num_threads": asked.threads}}
    training = Training(asked)
    with cl.make_dataloader(config, micro_batch_size=asked.batch, device=asked.device) as loader:
        real = iter(loader)
        first = {name: value.clone() for name, value in next(real).items() if isinstance(value, torch.Tensor)}
        sources = {"synthetic": repeat(first), "loader": real}
        times = {name: [] for name in sources}
        for batches in sources.values():
            training.run(batches, max(2, asked.steps // 4))  # warm
        for _ in range(asked.rounds):
            for name, batches in sources.items():
                times[name].append(training.run(batches, asked.steps))
        found = {
            "device": torch.cuda.get_device_name() if training.on_cuda else "cpu",
            "torch": torch.__version__,
            "parameters": sum(parameter.numel() for parameter in training.model.parameters()),
            "tokens_a_step": asked.batch * asked.seq_len,
            "loss": training.loss,
        }
        for name, rounds in times.items():
            found[name] = {key: statistics.median(one[key] for one in rounds) for key in rounds[0]}
        ratios = [a["step"] / b["step"] - 1 for a, b in zip(times["loader"], times["synthetic"], strict=True)]
        found["overhead_percent"] = 100 * statistics.median(ratios)
        found["overhead_percent_of_rounds"] = [round(100 * ratio, 3) for ratio in ratios]
    return found


if __name__ == "__main__":
    json.dump(main(), sys.stdout, indent=1)
    print()
