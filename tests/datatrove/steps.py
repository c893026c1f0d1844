"""A corpus for builds by datatrove; as a script: one task."""

import json
import sys

from conceptloader.integrations.datatrove_lib import ConceptBuild

TASKS = 3
OPTIONS = {
    "tokenizer": "bytes",
    "vocabulary": {"concepts": ["noun", "number"]},
    "shard_input_bytes": 1500,
}


def record(number):
    """Document `number` as a record of `conceptloader build`."""
    text = f"Dökument {number}: " + "wörd " * (number % 7)
    spans = [{"start": 0, "end": 8, "concepts": ["noun"]}, {"start": 9, "end": 11, "concepts": ["number", "noun"]}]
    return {"id": f"d{number}", "text": text, "spans": spans[: number % 3]}


def write_corpus(folder, documents=60):
    """Four files of lines."""
    folder.mkdir(parents=True)
    for part in range(4):
        lines = [json.dumps(record(number)) + "\n" for number in range(part, documents, 4)]
        (folder / f"{part}.jsonl").write_text("".join(lines))
    return folder


if __name__ == "__main__":
    ConceptBuild(sys.argv[1], sys.argv[2], **OPTIONS).run(rank=int(sys.argv[3]), world_size=int(sys.argv[4]))
