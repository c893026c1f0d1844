"""The example for Slurm: on this machine, and submitted to stand-ins of sbatch and srun that run jobs one by one."""

import os
import runpy
import sys
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet
import pytest

import conceptloader as cl
from tests.datatrove import steps
from tests.datatrove.test_build import content

# Runs the script it is given once per index of --array, in order, with the environment that Slurm sets.
SBATCH = """#!/bin/bash
for script in "$@"; do :; done
array=$(sed -n 's/^#SBATCH --array=\\([0-9]*\\)-\\([0-9]*\\).*/\\1 \\2/p' "$script")
for index in $(seq $array); do
  SLURM_ARRAY_TASK_ID=$index SLURM_NODELIST=here SLURM_NODEID=0 \\
    bash "$script" >> "$SLURM_LOG" 2>&1
done
echo "Submitted batch job 17"
"""
SRUN = """#!/bin/bash
while [[ "$1" == -* ]]; do [[ "$1" == -n ]] && shift; shift; done
exec "$@"
"""


@pytest.mark.slow
def test_local_and_submitted_builds_are_equal(tmp_path, checkout, monkeypatch):
    (tmp_path / "corpus").mkdir()
    for part in range(4):
        rows = [{**steps.record(number), "url": f"u{number}"} for number in range(part * 10, part * 10 + 10)]
        for row in rows:
            row["spans"] = [{**span, "concepts": [0]} for span in row["spans"]]
        pyarrow.parquet.write_table(pa.Table.from_pylist(rows), tmp_path / "corpus" / f"{part}.parquet")
    script, tools = str(checkout / "examples/slurm/build.py"), tmp_path / "bin"
    options = ["--tokenizer", "bytes", "--tasks", "2", "--metadata", "url", "--shard-input-bytes", "5000"]
    options += ["--logs", str(tmp_path / "logs")]
    words = [script, str(tmp_path / "corpus"), str(tmp_path / "local"), *options]
    monkeypatch.setattr(sys, "argv", [*words, "--local"])
    runpy.run_path(script, run_name="__main__")
    with cl.open_dataset(tmp_path / "local") as ds:
        assert (ds.num_documents, ds.num_shards > 1) == (40, True)
        assert sorted(ds.tracks) == ["concepts", "metadata"]
    tools.mkdir()
    for name, text in (("sbatch", SBATCH), ("srun", SRUN), ("scontrol", "#!/bin/sh\necho here\n")):
        (tools / name).write_text(text)
        (tools / name).chmod(0o755)
    monkeypatch.setenv("PATH", f"{tools}:{Path(sys.executable).parent}:{os.environ['PATH']}")
    monkeypatch.setenv("PYTHONPATH", str(checkout))
    monkeypatch.setenv("SLURM_LOG", str(tmp_path / "slurm.log"))
    words = [script, str(tmp_path / "corpus"), str(tmp_path / "slurm"), *options[:-1], str(tmp_path / "slurm-logs")]
    monkeypatch.setattr(sys, "argv", words)
    runpy.run_path(script, run_name="__main__")
    assert (tmp_path / "slurm" / "manifest.json").exists(), (tmp_path / "slurm.log").read_text()
    assert content(tmp_path / "slurm") == content(tmp_path / "local")
