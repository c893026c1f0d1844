"""The example of the README, with torchrun."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch
import yaml

import conceptloader as cl


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_the_example_runs_on_two_ranks_and_goes_on_with_one(checkout: Path, tmp_path: Path) -> None:
    spans = [{"start": 2, "end": 5, "concepts": ["animal"]}]
    records = [json.dumps({"id": f"d{i}", "text": "A cat sat. " * (5 + i % 7), "spans": spans}) for i in range(100)]
    (tmp_path / "in.jsonl").write_text("\n".join(records))
    cl.build(tmp_path / "in.jsonl", tmp_path / "d", tokenizer="bytes", vocabularies={"concepts": ["animal"]})
    config = {"seq_len": 64, "datasets": {"d": {"path": str(tmp_path / "d")}}, "concepts": {"concepts": {}}}
    (tmp_path / "run.yaml").write_text(yaml.safe_dump(config))
    script = str(checkout / "examples/pytorch/train.py")
    torchrun = ["-m", "torch.distributed.run", "--standalone", "--nproc_per_node", "2"]
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "GLOO_SOCKET_IFNAME": "lo"}
    for launcher in (torchrun, []):
        done = subprocess.run(
            [sys.executable, *launcher, script], cwd=tmp_path, env=environment, capture_output=True, text=True
        )
        assert done.returncode == 0, done.stderr[-3000:]
        state = torch.load(tmp_path / "checkpoint.pt")
        assert sorted(state["model"]) == ["0.weight", "1.bias", "1.weight"]
        with cl.make_dataloader(tmp_path / "run.yaml", micro_batch_size=12) as loader:
            loader.load_state_dict(state["loader"])
            assert loader.consumed_samples == 360
            state["loader"] = loader.state_at(240)  # go on from step 20
        torch.save(state, tmp_path / "checkpoint.pt")
