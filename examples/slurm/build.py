"""Build a dataset on a Slurm cluster with datatrove's executors: each task writes some shards, one more completes it.

    python examples/slurm/build.py corpus/ dataset/ --tokenizer tokenizer.json --tasks 64 --logs logs/ --partition cpu

Run the same command again after a failure: finished shards are kept. --local runs the tasks on this machine instead.
The columns `text` and `id` make the documents, `spans` the concepts, and those of --metadata the track `metadata`.
"""

import argparse
from functools import partial
from pathlib import Path

from datatrove.executor import LocalPipelineExecutor, SlurmPipelineExecutor

from conceptloader.integrations.datatrove_lib import ConceptBuild, ConceptBuildFinish


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("corpus", type=Path, help="folder of JSONL or parquet files")
    parser.add_argument("out", type=Path, help="directory of the dataset, on a file system that all nodes see")
    parser.add_argument("--tokenizer", required=True, help="bytes, a tokenizer.json or a transformers folder")
    parser.add_argument("--vocabulary", help="names of the concepts, one per line")
    parser.add_argument("--metadata", nargs="*", default=[], help="columns to keep")
    parser.add_argument("--tasks", type=int, required=True, help="at most the number of shards, about 64")
    parser.add_argument("--shard-input-bytes", type=int, help="input of a shard, for more or fewer of them")
    parser.add_argument("--partition", default="cpu")
    parser.add_argument("--logs", type=Path, required=True, help="datatrove's folder of logs and completed tasks")
    parser.add_argument("--local", action="store_true")
    arguments = parser.parse_args()

    options = {
        "tokenizer": arguments.tokenizer,
        "column": {"spans": "spans"},
        "metadata_column": arguments.metadata,
        "vocabulary": {"concepts": arguments.vocabulary} if arguments.vocabulary else {},
        "shard_input_bytes": arguments.shard_input_bytes,
    }
    slurm = {"time": "12:00:00", "partition": arguments.partition, "mail_type": "NONE"}
    kind = partial(LocalPipelineExecutor, workers=1) if arguments.local else partial(SlurmPipelineExecutor, **slurm)
    executor = None
    # The last task starts when all others have ended without an error.
    for step, tasks in (ConceptBuild, arguments.tasks), (ConceptBuildFinish, 1):
        logs, work = str(arguments.logs.resolve() / step.__name__), [step(arguments.corpus, arguments.out, **options)]
        executor = kind(work, tasks, logging_dir=logs, depends=executor)
    executor.run()


if __name__ == "__main__":
    main()
