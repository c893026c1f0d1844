"""Tokenize parquet files on a Slurm cluster with datatrove: one shard per task, then finalize.

    python examples/slurm/build.py corpus/ dataset/ --tokenizer tokenizer.json --tasks 500 --logs logs/ --partition cpu

Run the same command again after a failure: finished tasks are skipped. --local runs the tasks on this machine instead.
The columns `text` and `id` make the documents; `url` and `date` are kept as metadata; `spans`, if there, as concepts.
"""

import argparse
from pathlib import Path
from typing import Any

from datatrove.executor import LocalPipelineExecutor, SlurmPipelineExecutor
from datatrove.pipeline.readers import ParquetReader

from conceptloader.integrations.datatrove_lib import ConceptStreamFinalize, ConceptStreamWriter


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("corpus", type=Path, help="folder of parquet files")
    parser.add_argument("out", type=Path, help="directory of the dataset, on a file system that all nodes see")
    parser.add_argument("--tokenizer", required=True, help="bytes, a tokenizer.json or a transformers folder")
    parser.add_argument("--vocabulary", help="names of the concepts, one per line")
    parser.add_argument("--tasks", type=int, required=True, help="tasks = shards; at most the number of input files")
    parser.add_argument("--workers", type=int, default=-1, help="tasks at a time (default: all)")
    parser.add_argument("--partition", default="cpu")
    parser.add_argument("--time", default="12:00:00", help="limit of a task")
    parser.add_argument("--logs", type=Path, required=True, help="datatrove's folder of logs and completed tasks")
    parser.add_argument("--local", action="store_true")
    arguments = parser.parse_args()

    write = [
        # Which files a task reads follows from its rank: files are listed in order and dealt out.
        ParquetReader(str(arguments.corpus)),
        ConceptStreamWriter(
            arguments.out,
            arguments.tokenizer,
            spans={"concepts": "spans"},
            vocabularies={"concepts": arguments.vocabulary} if arguments.vocabulary else None,
            metadata=["url", "date"],
        ),
    ]
    logs = {name: str(arguments.logs.resolve() / name) for name in ("write", "finalize")}
    first: Any
    last: Any
    if arguments.local:
        first = LocalPipelineExecutor(write, arguments.tasks, arguments.workers, logs["write"])
        last = LocalPipelineExecutor(
            [ConceptStreamFinalize(arguments.out)], logging_dir=logs["finalize"], depends=first
        )
    else:
        slurm = {"time": arguments.time, "partition": arguments.partition, "mail_type": "NONE"}
        first = SlurmPipelineExecutor(
            write, arguments.tasks, workers=arguments.workers, job_name="write", logging_dir=logs["write"], **slurm
        )
        # Starts when all writers have ended without an error.
        last = SlurmPipelineExecutor(
            [ConceptStreamFinalize(arguments.out)], 1, job_name="finalize", logging_dir=logs["finalize"],
            depends=first, **slurm,
        )  # fmt: skip
    last.run()


if __name__ == "__main__":
    main()
