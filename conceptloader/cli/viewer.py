"""conceptloader viewer"""

import argparse
import contextlib
import os
import sys
import webbrowser

from conceptloader.cli.arguments import add_root, chosen, positive
from conceptloader.cli.output import Output
from conceptloader.cli.runs import add_run_arguments, open_run
from conceptloader.errors import ConfigError
from conceptloader.format.read.dataset import open_dataset
from conceptloader.storage.stores import is_url
from conceptloader.viewer.server import Server, is_loopback
from conceptloader.viewer.source import Looked, alone

DESCRIPTION = """\
Serve a local web page: windows as text with their spans, search for concepts, the mixture over the run, what is in a
step, when a document or a concept is seen, statistics, damage. Nothing is written, and nothing leaves this machine.

  conceptloader viewer run.yaml --run-log checkpoints
  conceptloader viewer data/corpus --seq-len 1024

Prints the address of the page, which holds a token that is new each time; Ctrl-C ends it. On another machine, forward
the port: ssh -L 8765:localhost:8765, with --port 8765. Steps of a planned run are known with --global-batch-size.
"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add_run_arguments(parser, "CONFIG|DATASET", "configuration of a run, a YAML file; or the directory of a dataset")
    add = parser.add_argument
    add("--losses", metavar="DIR", help="the loss log of the run: steps show their losses")
    add("--samples", type=positive, metavar="N", help="length of the run in samples, over all ranks")
    add("--seq-len", type=positive, default=512, metavar="S", help="windows of a dataset without a run (default: 512)")
    add("--tokenizer", metavar="bytes|PATH", help="default: the dataset's own, if it has a copy")
    add_root(add, " of a dataset")
    add("--host", default="127.0.0.1", metavar="ADDRESS", help="where to listen (default: for this machine only)")
    add("--port", type=int, default=0, metavar="N", help="default: one that is free")
    add("--open", action="store_true", help="open the page in the browser of this machine")


def run(arguments: argparse.Namespace, output: Output) -> None:
    dataset = is_url(arguments.config) or os.path.isdir(arguments.config)
    if dataset and any(map(vars(arguments).get, ("log", "losses", "samples", "global_batch"))):
        raise ConfigError(arguments.config, "found a dataset, which has no steps", fix="give the run's configuration")
    if dataset:
        looked = alone(open_dataset(arguments.config, arguments.root), arguments.seq_len, arguments.tokenizer)
    else:
        options = chosen(arguments, "samples", "log", "losses", "tokenizer")
        looked = Looked(title=os.path.basename(arguments.config), run=open_run(arguments), **options)
    with Server(looked, arguments.host, arguments.port) as server:
        text = [f"{looked.title}: {server.url}"]
        if not is_loopback(arguments.host):
            text.append("whoever has this address can read the data, from other machines too, and on the way: no TLS")
        output.result({"url": server.url}, text)
        sys.stdout.flush()
        if arguments.open:
            webbrowser.open(server.url)
        with contextlib.suppress(KeyboardInterrupt):  # the way to end it
            server.serve_forever()
