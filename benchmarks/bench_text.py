"""Building from text: JSONL in, dataset out, with gigatoken and without, beside what tokenizing and parsing alone take.

The text is the source of Python's standard library, cut at random; the tokenizer, of GPT-2's kind, is trained on it.
"""

import json
import os
import random
import shutil
import sysconfig
from pathlib import Path

import gigatoken
from data import ROOT
from harness import US, Contender, Report
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers

from conceptloader.ingest.build import shard
from conceptloader.ingest.build.builder import IngestOptions, build_dataset
from conceptloader.ingest.records.columns import Columns
from conceptloader.ingest.records.fast import VARIABLE
from conceptloader.ingest.records.inputs import find_sources
from conceptloader.ingest.records.tokenizer import load_tokenizer

SIZE, FILES = 48_000_000, 4
folder, target = ROOT / "text", ROOT / "built-text"


def texts() -> list[str]:
    files = sorted(Path(sysconfig.get_path("stdlib")).glob("*.py"))
    words = "\n".join(path.read_text(errors="ignore") for path in files).split(" ")
    draw, found, size = random.Random(0), [], 0
    while size < SIZE:
        at = draw.randrange(len(words) - 600)
        found.append(" ".join(words[at : at + draw.randint(50, 600)]))
        size += len(found[-1])
    return found


def write_inputs(documents: list[str]) -> None:
    """`bare`, and `spans`: the same with a concept on every tenth word."""
    made = Tokenizer(models.BPE())
    made.pre_tokenizer, made.decoder = pre_tokenizers.ByteLevel(add_prefix_space=False), decoders.ByteLevel()
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    special = ["<|endoftext|>"]
    trainer = trainers.BpeTrainer(vocab_size=32_000, special_tokens=special, initial_alphabet=alphabet)
    made.train_from_iterator(documents[:2000], trainer)
    for name in ("bare", "spans"):
        (folder / name).mkdir(parents=True, exist_ok=True)
        for k in range(FILES):
            with open(folder / name / f"{k}.jsonl", "w") as file:
                for number in range(k, len(documents), FILES):
                    row: dict[str, object] = {"id": str(number), "text": documents[number]}
                    if name == "spans":
                        row["spans"] = words_of(documents[number])
                    file.write(json.dumps(row) + "\n")
    made.save(str(folder / "tokenizer.json"))


def words_of(text: str) -> list[dict[str, object]]:
    spans, at = [], 0
    for number, word in enumerate(text.split(" ")):
        if number % 10 == 0 and word:
            spans.append({"start": at, "end": at + len(word), "concepts": [number % 1000]})
        at += len(word) + 1
    return spans


def build(name: str, fast: bool, workers: int = 1) -> None:
    shutil.rmtree(target, ignore_errors=True)
    os.environ[VARIABLE] = str(int(fast))
    shard._tokenizer.cache_clear()  # which keeps one that is fast or not
    columns = Columns(text="text", tokens=None, tracks={"concepts": "spans"} if name == "spans" else {})
    options = IngestOptions(
        columns=columns, tokenizer=load_tokenizer(str(folder / "tokenizer.json")), shard_input_bytes=16 << 20,
        max_unaligned_spans=1.0,
    )  # fmt: skip
    build_dataset(find_sources([folder / name]), target, options, workers=workers)


if __name__ == "__main__":  # the workers import this file
    os.environ["TOKENIZERS_PARALLELISM"] = "false"
    if not (folder / "tokenizer.json").exists():
        write_inputs(texts())
    lines = [line for k in range(FILES) for line in (folder / "bare" / f"{k}.jsonl").read_text().splitlines()]
    documents = [json.loads(line)["text"] for line in lines]
    total = sum(map(len, documents))
    slow = Tokenizer.from_file(str(folder / "tokenizer.json"))
    quick = gigatoken.Tokenizer.from_json(slow.to_str())
    report = Report("text")
    report.race(
        "text to tokens, one process",
        [
            Contender(US, lambda: build("bare", True), total),
            Contender("conceptloader, tokenizers", lambda: build("bare", False), total),
            Contender("conceptloader, with spans", lambda: build("spans", True), total),
            Contender("conceptloader, with spans, tokenizers", lambda: build("spans", False), total),
            Contender("tokenizers alone", lambda: slow.encode_batch(documents, add_special_tokens=False), total),
            Contender("gigatoken alone", lambda: [quick.encode(one) for one in documents], total),
            Contender("json alone", lambda: [json.loads(line) for line in lines], total),
        ],
        unit="ns/character",
        repeats=3,
    )
    report.race(
        "text to tokens, wall clock",
        [
            Contender(US, lambda: build("bare", True), total, wall=True),
            Contender("conceptloader, 2 workers", lambda: build("bare", True, 2), total, wall=True),
            Contender("conceptloader, tokenizers, 2 workers", lambda: build("bare", False, 2), total, wall=True),
        ],
        unit="ns/character",
        repeats=3,
    )
    report.finish()
