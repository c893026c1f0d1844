"""conceptloader warmup"""

import argparse
import time

import numpy as np

from conceptloader.batch.warm import warm_up
from conceptloader.cli.output import Output
from conceptloader.ingest.rows.digits import parse_digits

DESCRIPTION = """\
Compile the kernels of the loader into the cache of compiled code: when a package or an image is installed, or before a
large job. Without it the first batches of a machine are read more slowly, by plain code, while a process compiles.

The cache is $NUMBA_CACHE_DIR if that is set; or else beside the package, or the user's where that is read-only.

  conceptloader warmup
"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    pass


def run(arguments: argparse.Namespace, output: Output) -> None:
    start = time.monotonic()
    directories = warm_up()
    parse_digits(np.zeros(0, np.uint8), np.zeros(1, np.int64))
    seconds = time.monotonic() - start
    value = {"seconds": round(seconds, 3), "directories": directories}
    output.result(value, [f"compiled, or found compiled, in {seconds:.1f} s; looked for in {', '.join(directories)}"])
