"""Building from text: JSONL in, dataset out, with gigatoken and without, beside what tokenizing and parsing alone take.

The text is the source of Python's standard library, cut at random; the tokenizer, of GPT-2's kind, is trained on it.
"""

import json
import os
import random
import shutil
import sysconfig
from functools import cache
from importlib.util import find_spec
from pathlib import Path

import gigatoken
from data import ROOT
from harness import US, Contender, Report
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers

from conceptloader.ingest.build.builder import build_dataset
from conceptloader.ingest.build.options import Options
from conceptloader.ingest.records.columns import Columns
from conceptloader.ingest.records.fast import VARIABLE
from conceptloader.ingest.records.inputs import find_sources

SIZE, LARGE, FILES, FIRST, EOS = 48_000_000, 300_000_000, 4, "0.jsonl", "<|endoftext|>"
folder, target = ROOT / "texts", ROOT / "built-text"


def texts(least):
    files = sorted(Path(sysconfig.get_path("stdlib")).glob("*.py"))
    words = "\n".join(path.read_text(errors="ignore") for path in files).split(" ")
    draw, found, size = random.Random(0), [], 0
    while size < least:
        at = draw.randrange(len(words) - 600)
        found.append(" ".join(words[at : at + draw.randint(50, 600)]))
        size += len(found[-1])
    return found


def write_inputs(documents):
    """`bare`, `spans`: the same with a concept on every tenth word, and `large`: more such text, for workers."""
    made = Tokenizer(models.BPE())
    made.pre_tokenizer, made.decoder = pre_tokenizers.ByteLevel(add_prefix_space=False), decoders.ByteLevel()
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    trainer = trainers.BpeTrainer(vocab_size=32_000, special_tokens=[EOS], initial_alphabet=alphabet)
    made.train_from_iterator(documents[:2000], trainer)
    kinds = {"bare": documents, "spans": documents, "large": texts(LARGE)}
    for name, rows in kinds.items():
        (folder / name).mkdir(parents=True, exist_ok=True)
        for k in range(FILES):
            with open(folder / name / f"{k}.jsonl", "w") as file:
                for number in range(k, len(rows), FILES):
                    row = {"id": str(number), "text": rows[number]}
                    if name == "spans":
                        row["spans"] = words_of(rows[number])
                    file.write(json.dumps(row) + "\n")
    made.save(str(folder / "tokenizer.json"))


def words_of(text):
    spans, at = [], 0
    for number, word in enumerate(text.split(" ")):
        if number % 10 == 0 and word:
            spans.append({"start": at, "end": at + len(word), "concepts": [number % 1000]})
        at += len(word) + 1
    return spans


def build(name, fast, workers=1, files=""):
    shutil.rmtree(target, ignore_errors=True)
    os.environ[VARIABLE] = str(int(fast))
    columns = Columns(text="text", tokens=None, tracks={"concepts": "spans"} if name == "spans" else {})
    tokenizer = str(folder / "tokenizer.json")
    options = Options(columns=columns, tokenizer=tokenizer, shard_input_bytes=16 << 20, max_unaligned_spans=1.0)
    build_dataset(find_sources([folder / name / files]), target, options, workers=workers)


def datatrove():
    from datatrove.executor import LocalPipelineExecutor
    from datatrove.pipeline.readers import JsonlReader
    from datatrove.pipeline.tokens import DocumentTokenizer

    shutil.rmtree(target, ignore_errors=True)
    tokenizer = DocumentTokenizer(
        str(target), str(folder / "tokenizer.json"), eos_token=EOS, shuffle_documents=False, batch_size=1000
    )
    pipeline = [JsonlReader(str(folder / "bare"), glob_pattern=FIRST), tokenizer]
    LocalPipelineExecutor(pipeline, logging_dir=str(target / "logs"), skip_completed=False).run()


@cache
def slow_tokenizer():
    return Tokenizer.from_file(str(folder / "tokenizer.json"))


def encoded(path):
    """As litdata's documentation has it: a tensor a document."""
    import torch

    with open(path) as file:
        for line in file:
            yield torch.tensor(slow_tokenizer().encode(json.loads(line)["text"]).ids, dtype=torch.int32)


def litdata():
    from litdata import TokensLoader, optimize

    shutil.rmtree(target, ignore_errors=True)
    optimize(
        encoded, [str(folder / "bare" / FIRST)], output_dir=str(target), chunk_bytes="64MB", num_workers=1,
        item_loader=TokensLoader(4097), verbose=False,
    )  # fmt: skip


def peers(first):
    """Those that are installed, with one file."""
    return [Contender(one.__name__, one, first) for one in (datatrove, litdata) if find_spec(one.__name__)]


if __name__ == "__main__":  # the workers import this file
    os.environ["TOKENIZERS_PARALLELISM"] = "false"
    if not (folder / "tokenizer.json").exists():
        write_inputs(texts(SIZE))
    lines = [line for k in range(FILES) for line in (folder / "bare" / f"{k}.jsonl").read_text().splitlines()]
    documents = [json.loads(line)["text"] for line in lines]
    total = sum(map(len, documents))
    slow = slow_tokenizer()
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
    first = sum(map(len, documents[: (len(documents) + FILES - 1) // FILES]))  # those of FIRST, which are read first
    report.race(
        "text to tokens, and others",
        [
            Contender(US, lambda: build("bare", True), total),
            Contender("conceptloader, tokenizers", lambda: build("bare", False, files=FIRST), first),
            *peers(first),
        ],
        unit="ns/character",
        repeats=1,
    )
    report.race(
        "text to tokens, wall clock",
        [
            Contender(US, lambda: build("large", True), LARGE, wall=True),
            Contender("conceptloader, 2 workers", lambda: build("large", True, 2), LARGE, wall=True),
            Contender("conceptloader, tokenizers, 2 workers", lambda: build("bare", False, 2), total, wall=True),
        ],
        unit="ns/character",
        repeats=3,
    )
    report.finish()
