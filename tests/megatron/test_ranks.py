"""Ranks are compared when the training data are opened."""

import json
import re
from pathlib import Path

import pytest

from tests.corpora.for_megatron import write_config, write_datasets
from tests.megatron.launching import ROOT, torchrun

EXPECTED = {
    "other weight": "order.phases: rank(s) 0: .*3.*7.*; rank(s) 1: .*1",
    "other copy": "order.members.web.stream_fingerprint: rank(s) 0: .*; rank(s) 1: ",
    "other position": "consumed_samples: rank(s) 0: 0; rank(s) 1: 8",
}


@pytest.mark.timeout(300)
def test_ranks_that_were_given_other_data(tmp_path: Path) -> None:
    """In real processes, divided in each way; tensor-parallel ranks get what the first of them reads."""
    write_datasets(tmp_path / "data")
    write_datasets(tmp_path / "copy", first_seed=5)
    write_config(tmp_path / "data/same.yaml")
    halves = {name: {"path": name, "weight": 0.5} for name in ("code", "web")}
    write_config(tmp_path / "data/other weight.yaml", datasets=halves)
    shares = {"code": {"path": "code", "weight": 0.3}, "web": {"path": "../copy/web", "weight": 0.7}}
    write_config(tmp_path / "data/other copy.yaml", datasets=shares)
    run = torchrun([str(ROOT / "tests/megatron/check_ranks.py"), str(tmp_path / "data")], tmp_path / "run")
    assert run.returncode == 0, run.output[-3000:]
    for rank in range(2):
        cases = json.loads((tmp_path / f"run/found{rank}.json").read_text())
        assert len(cases) == 16
        for case, found in cases.items():
            layout, what = case.split(", ")
            if what == "same" or layout == "tp":
                assert found == "accepted", (rank, case)
            else:
                assert re.search(EXPECTED[what].replace("(s)", r"\(s\)"), found), (rank, case, found)
