"""The example of fine-tuning: killed, and resumed on another number of ranks, it learns what it would have learnt."""

import json
import os
import re
import signal
import subprocess
import sys
from pathlib import Path

import pytest
import yaml

from conceptloader.cli import main

LINE = re.compile(r"step (\d+) loss ([\d.]+) tokens (\d+)")


def prepare(folder: Path) -> Path:
    """The data of docs/packing.md, a bit more of them."""
    folder.mkdir()
    with open(folder / "chats.jsonl", "w") as file:
        for k in range(300):
            question = {"role": "user", "content": f"What is {k % 17} and {k % 5}?"}
            answer = {"role": "assistant", "content": f"It is {k % 17 + k % 5}." + " Yes." * (k % 9)}
            file.write(json.dumps({"id": str(k), "messages": [question, answer] * (1 + k % 3)}) + "\n")
    (folder / "chat.jinja").write_text("{% for m in messages %}[{{ m.role }}]{{ m.content }}\n{% endfor %}"
                                       "{% if add_generation_prompt %}[assistant]{% endif %}")  # fmt: skip
    chat = ["--chat", "--chat-template", str(folder / "chat.jinja"), "--tokenizer", "bytes"]
    assert main(["build", str(folder / "chats.jsonl"), "--out", str(folder / "chats"), *chat, "--quiet"]) == 0
    config = {"seq_len": 256, "packing": {"bins": 8}, "datasets": {"chats": {"path": str(folder / "chats")}}}
    (folder / "sft.yaml").write_text(yaml.safe_dump({**config, "outputs": {"cu_seqlens": True}}))
    return folder


def run(folder: Path, checkout: Path, ranks: int, kill_at: int | None = None) -> dict[int, tuple[float, int]]:
    """Loss and tokens of each step."""
    launcher = ["-m", "torch.distributed.run", "--standalone", "--nproc_per_node", str(ranks)] if ranks > 1 else []
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "GLOO_SOCKET_IFNAME": "lo"}
    process = subprocess.Popen(
        [sys.executable, *launcher, str(checkout / "examples/pytorch/sft.py")],
        cwd=folder, env=environment, stdout=subprocess.PIPE, text=True, start_new_session=True,
    )  # fmt: skip
    found = {}
    assert process.stdout is not None
    for line in process.stdout:
        if match := LINE.search(line):
            found[int(match[1])] = float(match[2]), int(match[3])
            if int(match[1]) == kill_at:
                os.killpg(process.pid, signal.SIGKILL)
                break
    process.stdout.close()
    assert process.wait() == (0 if kill_at is None else -signal.SIGKILL)
    return found


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_killed_and_resumed_on_other_ranks_it_learns_the_same(checkout: Path, tmp_path: Path) -> None:
    whole = run(prepare(tmp_path / "a"), checkout, 1)
    assert sorted(whole) == list(range(1, 25))
    assert whole[24][0] < whole[1][0] / 2
    broken = prepare(tmp_path / "b")
    before = run(broken, checkout, 2, kill_at=9)
    after = run(broken, checkout, 1)
    assert min(after) in (10, 11)
    for step, (loss, tokens) in {**before, **after}.items():
        assert tokens == whole[step][1]
        assert loss == pytest.approx(whole[step][0], rel=2e-3)
    assert sorted({**before, **after}) == sorted(whole)
