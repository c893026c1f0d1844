"""Build a dataset on a Slurm cluster with datatrove's executors: each task writes some shards, one more completes it.

    python examples/slurm/build.py corpus/ dataset/ --tokenizer tokenizer.json --tasks 64 --logs logs/ --partition cpu

Run the same command again after a failure: finished shards are kept. --local runs the tasks on this machine instead.
The columns `text` and `id` make the documents, `spans` the concepts, and those of --metadata the track `metadata`.
"""

import argparse
from pathlib import Path
from typing import Any

from datatrove.executor import LocalPipelineExecutor, SlurmPipelineExecutor

from conceptloader.integrations.datatrove_lib import ConceptBuild, ConceptBuildFinish


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("corpus", type=Path, help="folder of JSONL or parquet files")
    parser.add_argument("out", type=Path, help="directory of the dataset, on a file system that all nodes see")
    parser.add_argument("--tokenizer", required=True, help="bytes, a tokenizer.json or a transformers folder")
    parser.add_argument("--vocabulary", help="names of the concepts, one per line")
    parser.add_argument("--metadata", nargs="*", default=[], help="columns to keep")
    parser.add_argument("--tasks", type=int, required=True, help="at most the number of shards, about 64")
    parser.add_argument("--shard-input-bytes", type=int, help="input of a shard, for more or fewer of them")
    parser.add_argument("--workers", type=int, default=-1, help="tasks at a time (default: all)")
    parser.add_argument("--partition", default="cpu")
    parser.add_argument("--time", default="12:00:00", help="limit of a task")
    parser.add_argument("--logs", type=Path, required=True, help="datatrove's folder of logs and completed tasks")
    parser.add_argument("--local", action="store_true")
    arguments = parser.parse_args()

    options: dict[str, Any] = {
        "tokenizer": arguments.tokenizer,
        "column": {"spans": "spans"},
        "metadata_column": arguments.metadata,
        "vocabulary": {"concepts": arguments.vocabulary} if arguments.vocabulary else {},
        "shard_input_bytes": arguments.shard_input_bytes,
    }
    build = [ConceptBuild(arguments.corpus, arguments.out, **options)]
    finish = [ConceptBuildFinish(arguments.corpus, arguments.out, **options)]
    logs = {name: str(arguments.logs.resolve() / name) for name in ("build", "finish")}
    first: Any
    last: Any
    if arguments.local:
        first = LocalPipelineExecutor(build, arguments.tasks, arguments.workers, logs["build"])
        last = LocalPipelineExecutor(finish, logging_dir=logs["finish"], depends=first)
    else:
        slurm = {"time": arguments.time, "partition": arguments.partition, "mail_type": "NONE"}
        first = SlurmPipelineExecutor(
            build, arguments.tasks, workers=arguments.workers, job_name="build", logging_dir=logs["build"], **slurm
        )
        # Starts when all tasks have ended without an error.
        last = SlurmPipelineExecutor(finish, 1, job_name="finish", logging_dir=logs["finish"], depends=first, **slurm)
    last.run()


if __name__ == "__main__":
    main()
