"""The example for Slurm: on this machine, and submitted to stand-ins of sbatch and srun that run jobs one by one."""

import os
import subprocess
import sys
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet
import pytest

import conceptloader as cl
from tests.datatrove import steps
from tests.datatrove.test_writer import content

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


@pytest.fixture
def corpus(tmp_path: Path) -> Path:
    folder = tmp_path / "corpus"
    folder.mkdir()
    for part in range(4):
        rows = [steps.record(number) for number in range(part * 10, part * 10 + 10)]
        for row in rows:
            row["spans"] = [{**span, "concepts": [0]} for span in row["spans"]]
        pyarrow.parquet.write_table(pa.Table.from_pylist(rows), folder / f"{part}.parquet")
    return folder


def run(tmp_path: Path, checkout: Path, corpus: Path, name: str, *options: str, **environment: str) -> Path:
    command = [sys.executable, checkout / "examples/slurm/build.py", corpus, tmp_path / name, "--tokenizer", "bytes"]
    command += ["--tasks", "2", "--logs", tmp_path / f"{name}-logs", *options]
    done = subprocess.run(
        [str(part) for part in command], env={**os.environ, "PYTHONPATH": str(checkout), **environment},
        capture_output=True, text=True,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    return tmp_path / name


@pytest.mark.slow
def test_local_and_submitted_builds_are_equal(tmp_path: Path, checkout: Path, corpus: Path) -> None:
    local = run(tmp_path, checkout, corpus, "local", "--local", "--workers", "2")
    with cl.open_dataset(local) as ds:
        assert (ds.num_documents, ds.num_shards) == (40, 2)
        assert sorted(ds.tracks) == ["concepts", "metadata"]
    tools = tmp_path / "bin"
    tools.mkdir()
    for name, text in (("sbatch", SBATCH), ("srun", SRUN), ("scontrol", "#!/bin/sh\necho here\n")):
        (tools / name).write_text(text)
        (tools / name).chmod(0o755)
    path = f"{tools}:{Path(sys.executable).parent}:{os.environ['PATH']}"
    log = tmp_path / "slurm.log"
    slurm = run(tmp_path, checkout, corpus, "slurm", PATH=path, SLURM_LOG=str(log))
    assert (slurm / "manifest.json").exists(), log.read_text()
    assert content(slurm) == content(local)
