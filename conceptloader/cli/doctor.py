"""The command `conceptloader doctor`."""

import argparse
import os
import random
from collections.abc import Iterator
from dataclasses import asdict, replace
from typing import Any

from conceptloader.base.arguments import above_zero, positive, refuse_without
from conceptloader.cli.checkup import check_up
from conceptloader.cli.output import Output, progress_bar, table
from conceptloader.cli.runs import add_sizes, plan_of
from conceptloader.config import Blend, load_config, open_blend
from conceptloader.errors import ConfigError
from conceptloader.format.tools.verify import verify
from conceptloader.loader.batch.measure import Pass, drop_from_cache, measure
from conceptloader.loader.batch.open import open_reader

DESCRIPTION = """\
Check a configuration and its storage before a long run: whether it opens, whether files match their manifests (as
`conceptloader verify`), what a few hundred of its samples have, and how fast its windows are read in shuffled order.
The first pass reads windows individually, for their latency; the second reads batches with the loader's threads.

  conceptloader doctor run.yaml
  conceptloader doctor run.yaml --global-batch-size 512 --micro-batch-size 1 --dp-size 64
  conceptloader doctor run.yaml --samples 1000000 --vocab-size 50304 --cold --tokens-per-second-needed 1.5e6

Each line of the samples begins with ok or BAD: token ids beyond the model's vocabulary, datasets that are never drawn
or too often, ids of `exclude` that no dataset has, more than half of the labels without a loss, weights that are all
0, tracks without a concept, more than 1 % of the spans lost by the build. The line "ranks" has a digest of what all
ranks compare at the start, except for sizes of the trainer: run doctor on two nodes and compare it.

"fetched/read" is the number of bytes that storage delivered per byte that the loader needed. Near 0, the page cache was
measured. --cold drops the files from it first (no privileges needed), and reads every window at most once. Pages that
are dirty or mapped by a process stay cached, and so do caches of disks and file servers.

A token is an input position of a batch, padding included. --tokens-per-second-needed is what one loader must deliver:
seq_len times the samples that its process reads per step, divided by the seconds per step. Loaders on one machine share
storage and cores: pass the sum of their needs, and of their threads as --threads.

Exit codes: 0 success, 1 BAD, too slow or corrupt data, 2 usage error.
"""

_SEQ_LEN = 4096
_NO_END = 1 << 62


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add = parser.add_argument
    add("config", metavar="CONFIG", help="a configuration (YAML)")
    add("--tokens-per-second-needed", type=above_zero, metavar="X", help="check that the loader delivers them")
    add("--cold", action="store_true", help="drop the files from the page cache first")
    add(
        "--threads",
        type=positive,
        metavar="N",
        help="reading threads (default: loader.num_threads, or 2)",
    )
    add("--seq-len", type=positive, metavar="S", help=f"default: the configuration's, or {_SEQ_LEN}")
    add("--batch-size", type=positive, default=16, metavar="B", help="samples per batch (default: 16)")
    add("--seconds", type=above_zero, default=5.0, metavar="T", help="duration of each of the two passes (default: 5)")
    add("--samples", type=positive, metavar="N", help="length of the run (default: one epoch of all datasets)")
    add("--vocab-size", type=positive, metavar="V", help="rows of the model's embedding")
    add_sizes(add, "samples per step, over all ranks: say what loader.balance gives")


def run(arguments: argparse.Namespace, output: Output) -> int:
    refuse_without("--global-batch-size", arguments, "micro_batch_size", "dp_size", "scheme")
    config = load_config(arguments.config)
    if arguments.cold and any("://" in dataset.path for dataset in config.datasets.values()):
        raise ConfigError(
            "--cold",
            "a dataset in an object store, which is not in the page cache",
            "a dataset on a disk",
            "omit --cold",
        )
    config = replace(config, seq_len=arguments.seq_len or config.seq_len or _SEQ_LEN).read_from(config.file)
    as_it_is = open_blend(config)
    problems = _problems(as_it_is, arguments)
    if problems:
        output.result({"config": arguments.config, "problems": problems}, problems)
        return 1
    plan = None if arguments.global_batch_size is None else plan_of(arguments)
    findings = list(check_up(as_it_is, arguments.samples, arguments.vocab_size, plan))
    changed = replace(config, seed=random.getrandbits(32), skip=())
    if config.order == "sequential":
        changed = replace(changed, order="shuffled", weights="by_size")
    blend = open_blend(changed.read_from(config.file), as_it_is.datasets)
    reader, loader, total = open_reader(blend), blend.config.loader, sum(blend.order.sizes)
    threads = arguments.threads or max(1, min(loader.num_threads, loader.prefetch_batches))
    prefetch = max(loader.prefetch_batches, threads) if arguments.threads or loader.prefetch_batches else 0
    taken = reader.layout.carve(arguments.batch_size).size * (prefetch + 2)
    there = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    if taken > there:
        raise ConfigError(
            "--batch-size, --seq-len",
            f"{taken >> 20:,} MiB of prefetched batches",
            f"at most the {there >> 20:,} MiB of this machine",
            "lower one of them, or --threads",
        )

    def read(first: int, last: int, **how: int) -> Pass:
        if arguments.cold:  # the passes share an epoch: a window read twice would come from the cache
            drop_from_cache(blend)
        last = last if arguments.cold else _NO_END
        return measure(blend, reader, first=first, last=last, seconds=arguments.seconds, **how)

    single = read(0, total // 2, batch=1, threads=1, prefetch=0)
    batches = read(single.samples, total, batch=arguments.batch_size, threads=threads, prefetch=prefetch)
    speed, needed = batches.tokens_per_second, arguments.tokens_per_second_needed
    value = {
        "config": arguments.config,
        "unverified": [name for name, dataset in blend.datasets.items() if "://" in dataset.path],
        "mode": next(iter(blend.datasets.values())).mode,
        "samples": dict(zip(blend.order.names, blend.order.sizes, strict=True)),
        "tracks": [track.name for track in reader.layout.tracks],
        "seq_len": reader.layout.seq_len,
        "threads": threads,
        "prefetch": prefetch,
        "cold": arguments.cold,
        "single": _plain(single),
        "batches": _plain(batches),
        "findings": [found._asdict() for found in findings],
        "needed": needed and {"tokens_per_second": needed, "headroom": speed / needed, "sufficient": speed >= needed},
    }
    output.result(value, _lines(value, arguments.seconds))
    return 1 if (needed and speed < needed) or not all(found.good for found in findings) else 0


def _problems(blend: Blend, arguments: argparse.Namespace) -> list[str]:
    """Return what `verify` finds in each local dataset: sizes and spot checksums of files."""
    with progress_bar(arguments.quiet) as progress:
        return [
            f"{name}: {problem}"
            for name, dataset in blend.datasets.items()
            if "://" not in dataset.path
            for problem in verify(
                dataset.path,
                roots=blend.config.allowed_roots,
                write_checksums=False,
                threads=len(os.sched_getaffinity(0)),
                progress=progress,
            )
        ]


def _plain(found: Pass) -> dict[str, Any]:
    return {
        **asdict(found),
        "tokens_per_second_per_thread": found.tokens_per_second / found.threads,
        "fetched_per_asked": found.fetched_per_asked,
        "from": found.source,
    }


def _lines(value: dict[str, Any], seconds: float) -> Iterator[str]:
    yield (
        f"{value['config']}: {sum(value['samples'].values()):,} samples of {value['seq_len']:,} tokens in an epoch, "
        f"tracks: {', '.join(value['tracks']) or 'none'}"
    )
    if value["unverified"]:
        yield f"files of {', '.join(value['unverified'])}: not compared with the manifest: they are in an object store"
    else:
        yield "files: sizes and spot checksums match the manifests"
    for found in value["findings"]:
        yield f"{'ok ' if found['good'] else 'BAD'}  {found['name']:<10}  {found['text']}"
    yield f"{value['threads']} threads, {value['prefetch']} batches prefetched"
    yield ""
    passes = {"single windows": value["single"], f"batches of {value['batches']['batch']}": value["batches"]}
    header = "", "tokens/s", "a thread", "p50 ms", "p99 ms", "samples", "bytes read each", "fetched/read", "came from"
    yield from table([_row(name, found) for name, found in passes.items()], header)
    yield ""
    for name, found in passes.items():
        if found["repeated"]:
            share = found["repeated"] / found["samples"]
            yield f"{name}: {share:.0%} of the samples were read twice: the data are too small for this many seconds"
        elif value["cold"] and found["seconds"] < seconds / 2:
            yield f"{name}: ended after {found['seconds']:.2g} s, when all of its windows had been read"
    if value["mode"] == "document":
        yield "tokens/s: of samples padded to seq_len; padding of short documents is counted"
    if value["batches"]["from"] == "page cache":
        hint = "--cold has no effect here" if value["cold"] else "try --cold"
        yield f"the page cache was measured, not the storage; {hint}"
    if value["needed"]:
        answer = "yes" if value["needed"]["sufficient"] else "NO"
        asked, headroom = value["needed"]["tokens_per_second"], value["needed"]["headroom"]
        times = f"{headroom:.2f}" if headroom < 10 else f"{headroom:,.0f}"
        yield f"{asked:,.0f} tokens/s needed: {answer}, {times} times as many were read"


def _row(name: str, found: dict[str, Any]) -> tuple[object, ...]:
    asked, share = found["bytes_asked"], found["fetched_per_asked"]
    return (
        name, round(found["tokens_per_second"]), round(found["tokens_per_second_per_thread"]),
        round(found["p50_ms"], 3), round(found["p99_ms"], 3), found["samples"],
        "?" if asked is None else asked // found["samples"], "?" if share is None else round(share, 2), found["from"],
    )  # fmt: skip
