"""Building from text: JSONL in, dataset out, with gigatoken and without, beside others; and with two workers.

The text is the source of Python's standard library, cut at random; the tokenizer, of GPT-2's kind, is trained on it.
"""

import json
import os
import random
import shutil
import sys
import sysconfig
from pathlib import Path

from data import HERE, ROOT
from harness import US, Contender, Report

import conceptloader as cl

sys.path.append(str(HERE.parent / "examples"))
from shared import END, train_tokenizer

SIZE, LARGE, FILES, FIRST = 48_000_000, 300_000_000, 4, "0.jsonl"
folder, target = ROOT / "text", ROOT / "built-text"
tokenizer = str(folder / "tokenizer.json")


def texts(least):
    files = sorted(Path(sysconfig.get_path("stdlib")).glob("*.py"))
    words = "\n".join(path.read_text(errors="ignore") for path in files).split(" ")
    draw, found, size = random.Random(0), [], 0
    while size < least:
        at = draw.randrange(len(words) - 600)
        found.append(" ".join(words[at : at + draw.randint(50, 600)]))
        size += len(found[-1])
    return found


def write_inputs():
    """`small`, `large`: for workers, and a tokenizer."""
    for name, rows in (("small", texts(SIZE)), ("large", texts(LARGE))):
        (folder / name).mkdir(parents=True, exist_ok=True)
        for k in range(FILES):
            lines = [json.dumps({"id": str(n), "text": rows[n]}) + "\n" for n in range(k, len(rows), FILES)]
            (folder / name / f"{k}.jsonl").write_text("".join(lines))
        if name == "small":
            train_tokenizer(rows[:2000], folder / "tokenizer.json", 32_000)


def build(name, fast=True, workers=1):
    shutil.rmtree(target, ignore_errors=True)
    os.environ["CONCEPTLOADER_FAST"] = str(int(fast))
    cl.build(folder / name, target, tokenizer=tokenizer, eos=END, shard_input_bytes=16 << 20, workers=workers)


def datatrove():
    from datatrove.executor import LocalPipelineExecutor
    from datatrove.pipeline.readers import JsonlReader
    from datatrove.pipeline.tokens import DocumentTokenizer

    shutil.rmtree(target, ignore_errors=True)
    tokenize = DocumentTokenizer(str(target), tokenizer, eos_token=END, shuffle_documents=False, batch_size=1000)
    pipeline = [JsonlReader(str(folder / "small"), glob_pattern=FIRST), tokenize]
    LocalPipelineExecutor(pipeline, logging_dir=str(target / "logs"), skip_completed=False).run()


if __name__ == "__main__":  # the workers import this file
    os.environ["TOKENIZERS_PARALLELISM"] = "false"
    if not Path(tokenizer).exists():
        write_inputs()
    first = len((folder / "small" / FIRST).read_text())
    report = Report("text")
    report.race(
        "text to tokens, and others",
        [
            Contender(US, lambda: build("small"), SIZE),
            Contender("conceptloader, tokenizers", lambda: build(f"small/{FIRST}", fast=False), first),
            Contender("datatrove", datatrove, first),
        ],
        unit="ns/character",
        repeats=3,
    )
    report.race(
        "text to tokens, wall clock",
        [
            Contender(US, lambda: build("large"), LARGE, wall=True),
            Contender("conceptloader, 2 workers", lambda: build("large", workers=2), LARGE, wall=True),
        ],
        unit="ns/character",
        repeats=3,
    )
    report.finish()
