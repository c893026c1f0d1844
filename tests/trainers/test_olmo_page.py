"""The page of OLMo-core, on two ranks."""

import os
import re
import subprocess
import sys

import pytest

from tests.ranks.server import free_port

pytestmark = [pytest.mark.slow, pytest.mark.timeout(900)]

ALIKE = """
import gc

from olmo_core.nn.transformer import Transformer

for model in [one for one in gc.get_objects() if isinstance(one, Transformer)]:
    for parameter in model.parameters():
        first = parameter.detach().clone()
        torch.distributed.broadcast(first, 0)
        assert torch.equal(first, parameter), "ranks have trained models of their own"
    print("ALIKE")
"""


def test_the_page_of_olmo_trains_one_model_on_two_ranks(checkout, tmp_path):
    pytest.importorskip("olmo_core")
    page = (checkout / "docs" / "trainers" / "torchtitan.md").read_text("utf-8")
    part = page.partition("<!-- needs: olmo_core -->")[2]
    corpus, script = re.findall(r"```python\n(.*?)```", part, re.DOTALL)
    (tmp_path / "corpus.py").write_text(corpus)
    (tmp_path / "train.py").write_text(script + ALIKE)
    environment = {**os.environ, "PYTHONPATH": str(checkout), "OMP_NUM_THREADS": "1"}
    launch = f"{sys.executable} -m torch.distributed.run --nproc_per_node 2 --master_port {free_port()} train.py"
    command = f"set -e; {sys.executable} corpus.py; timeout 200 {launch}"
    done = subprocess.run(["bash", "-c", command], cwd=tmp_path, env=environment, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr[-3000:]
    assert done.stdout.count("ALIKE") == 2
