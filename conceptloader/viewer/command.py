"""The command `conceptloader viewer`."""

import argparse
import contextlib
import os
import sys
import webbrowser

from conceptloader.cli.arguments import add_root, chosen, positive
from conceptloader.cli.output import Output
from conceptloader.errors import ConfigError
from conceptloader.format.read.dataset import open_dataset
from conceptloader.storage.urls import is_url
from conceptloader.trace.commands.runs import add_run_arguments, open_run
from conceptloader.viewer.server import Server, is_loopback
from conceptloader.viewer.source import Looked, alone

DESCRIPTION = """\
Browse a dataset or run in the browser: windows as text with their spans, search for concepts, the mixture over the run,
what a step contains, steps that contain a document or concept, statistics, corruption. Nothing is written, and nothing
leaves this machine.

  conceptloader viewer --run-log checkpoints
  conceptloader viewer data/corpus --seq-len 1024

Prints the address of the page, which holds a new token each time; Ctrl-C stops it. To view it from another machine,
forward the port: --port 8765 here, ssh -L 8765:localhost:8765 there. For steps of a planned run, pass
--global-batch-size.
"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add_run_arguments(parser, "CONFIG|DATASET", "configuration of a run (YAML), or directory or URL of a dataset")
    add = parser.add_argument
    add("--samples", type=positive, metavar="N", help="length of the run in samples, over all ranks")
    add("--seq-len", type=positive, default=512, metavar="S", help="tokens per window, for a dataset (default: 512)")
    add("--tokenizer", metavar="bytes|PATH", help="default: the dataset's copy, if any")
    add_root(add, " of a dataset")
    add(
        "--host",
        default="127.0.0.1",
        metavar="ADDRESS",
        help="where to listen (default: 127.0.0.1, this machine only)",
    )
    add("--port", type=int, default=0, metavar="N", help="port to listen on (default: a free one)")
    add("--open", action="store_true", help="open the page in a browser")


def run(arguments: argparse.Namespace, output: Output) -> None:
    dataset = arguments.config is not None and (is_url(arguments.config) or os.path.isdir(arguments.config))
    if dataset and any(map(vars(arguments).get, ("run_log", "samples", "global_batch_size"))):
        raise ConfigError(
            arguments.config, "a dataset, which has no steps", "a configuration", "give the run's configuration"
        )
    if dataset:
        looked = alone(open_dataset(arguments.config, arguments.root), arguments.seq_len, arguments.tokenizer)
    else:
        options = chosen(arguments, "samples", "tokenizer")
        run, title = open_run(arguments), os.path.basename(os.path.abspath(arguments.config or arguments.run_log))
        looked = Looked(title=title, run=run, log=arguments.run_log, **options)
    with Server(looked, arguments.host, arguments.port) as server:
        text = [f"{looked.title}: {server.url}"]
        if not is_loopback(arguments.host):
            text.append("anyone with this address can read the data, from other machines too; there is no TLS")
        output.result({"url": server.url}, text)
        sys.stdout.flush()
        if arguments.open:
            webbrowser.open(server.url)
        with contextlib.suppress(KeyboardInterrupt):  # the way to end it
            server.serve_forever()
