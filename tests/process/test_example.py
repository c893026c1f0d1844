"""The example of the README, with torchrun, killed while it saves."""

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
import yaml

import conceptloader as cl

# Runs a script, and ends it by SIGKILL when half of its nth checkpoint is written; prints the optimizer's steps.
DRIVER = """
import atexit, os, runpy, signal, sys, torch
from torch.optim.optimizer import register_optimizer_step_post_hook
left, steps, save = int(sys.argv[2]), [], torch.save
def save_and_die(state, path):
    global left
    save(state, path)
    left -= 1
    if not left:
        os.truncate(path, os.path.getsize(path) // 2)
        os.kill(os.getpid(), signal.SIGKILL)
torch.save = save_and_die
register_optimizer_step_post_hook(lambda *_: steps.append(1))
atexit.register(lambda: print("steps:", len(steps)))
runpy.run_path(sys.argv[1], run_name="__main__")
"""


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_the_example_runs_on_two_ranks_and_killed_while_it_saves_goes_on_with_one(
    checkout: Path, tmp_path: Path
) -> None:
    spans = [{"start": 2, "end": 5, "concepts": ["animal"]}]
    records = [json.dumps({"id": f"d{i}", "text": "A cat sat. " * (5 + i % 7), "spans": spans}) for i in range(100)]
    (tmp_path / "in.jsonl").write_text("\n".join(records))
    cl.build(tmp_path / "in.jsonl", tmp_path / "d", tokenizer="bytes", vocabularies={"concepts": ["animal"]})
    config = {"seq_len": 64, "datasets": {"d": {"path": str(tmp_path / "d")}}, "tracks": {"concepts": {}}}
    killed, whole = tmp_path / "killed", tmp_path / "whole"
    killed.mkdir()
    (killed / "run.yaml").write_text(yaml.safe_dump(config))
    (tmp_path / "driver.py").write_text(DRIVER)
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "GLOO_SOCKET_IFNAME": "lo"}

    def train(folder: Path, *launcher: str, dies_at: int = 0) -> tuple[int, str, int, Any]:
        """(exit code, output, samples of the checkpoint, the checkpoint)."""
        script = [str(tmp_path / "driver.py"), str(checkout / "examples/pytorch/train.py"), str(dies_at)]
        done = subprocess.run(
            [sys.executable, *launcher, *script], cwd=folder, env=environment, capture_output=True, text=True
        )
        assert done.returncode == 0 or dies_at, done.stderr[-3000:]
        state = torch.load(folder / "checkpoint.pt")
        with cl.make_dataloader(folder / "run.yaml", micro_batch_size=12) as loader:
            loader.load_state_dict(state["loader"])
            return done.returncode, done.stdout, loader.consumed_samples, state

    torchrun = ("-m", "torch.distributed.run", "--standalone", "--nproc_per_node", "2")
    code, _, samples, state = train(killed, *torchrun, dies_at=2)
    assert (code, samples) == (1, 120)
    assert sorted(state["model"]) == ["0.weight", "1.bias", "1.weight"]
    shutil.copytree(killed, whole)
    code, output, samples, expected = train(whole)
    assert (code, samples, output.splitlines()[-1]) == (0, 360, "steps: 20")
    code, _, samples, _ = train(killed, dies_at=2)
    assert (code, samples) == (-9, 240)
    code, output, samples, found = train(killed)
    assert (code, samples, output.splitlines()[-1]) == (0, 360, "steps: 10")
    assert found.pop("loader") == expected.pop("loader")
    torch.testing.assert_close(found, expected, rtol=0, atol=0)  # weights and moments
