"""The command `conceptloader`: one module per subcommand, each with

    DESCRIPTION                 what it does and an example, for `conceptloader <command> --help`
    add_arguments(parser)       its arguments
    run(arguments, output)      the work; returns the exit code, or nothing for 0

Data goes to stdout, logs and progress to stderr. Exit codes: 0 fine, 1 the data is bad, 2 usage.

Open verify.py first, which is short.
"""

import argparse
import contextlib
import os
import sys
import traceback
from collections.abc import Sequence
from importlib import import_module
from keyword import iskeyword

from conceptloader.base.version import __version__
from conceptloader.cli.output import Output, configure_logging, guarded_streams
from conceptloader.errors import ConceptloaderError, ConfigError

# To add a subcommand, add its module to this package and here its name, with a line for `conceptloader --help`; a word
# of Python's has _ behind it there. Only the module of the command that is given is imported.
COMMANDS = {
    "build": "build a dataset from jsonl or parquet files",
    "import": "build a dataset from a public corpus, as it is downloaded",
    "adopt": "use token files of Megatron, datatrove or OLMo where they are",
    "annotate": "attach a track to a dataset that exists",
    "finalize": "complete a build whose shards were written by other programs",
    "join": "make one dataset of several, by reference",
    "convert": "write a dataset again with other track encodings",
    "verify": "check that a dataset is what its manifest says",
    "inspect": "show a window or a document: text, spans with concepts, bytes read",
    "sample": "show random windows or documents",
    "stats": "count documents, spans and concepts",
    "concepts": "look for concepts of a dataset: names, groups, descriptions",
    "vocabulary": "collect the concept names of jsonl or parquet files",
    "index": "an index of the concepts of a dataset: which tokens carry each",
    "select": "a view: some documents of a dataset as a dataset, without copying a token",
    "init": "write a configuration for datasets",
    "plan": "which samples each rank reads at each step",
    "trace": "the documents and the concepts of a step",
    "when": "every step and rank at which a document or a concept is seen",
    "exposure": "how often each source, document or concept was seen until a step",
    "explain": "the documents and concepts behind the loss of a step",
    "audit": "replay a recorded run and name the first step that differs",
    "view": "look at a dataset or a run in the browser",
    "bench": "how fast the loader reads on this machine, and whether that is enough",
}

_DESCRIPTION = """\
Build, check and look into datasets of tokens with concepts attached.

  conceptloader build corpus.jsonl --out data/corpus --tokenizer bytes
  conceptloader inspect data/corpus --window 0 --seq-len 128
  conceptloader <command> --help          explains a command, with an example
"""


@guarded_streams()
def main(argv: Sequence[str] | None = None) -> int:
    """Run the command line `argv` (default: that of the process). Returns: the exit code."""
    given = [_with_home(argument) for argument in (sys.argv[1:] if argv is None else argv)]
    parser = make_parser(next(filter(COMMANDS.__contains__, given), ""))
    if not given:
        parser.print_help(sys.stderr)
        parser.exit(2)
    if not given[0].startswith("-") and given[0] not in COMMANDS:
        from conceptloader.base.strict import unknown

        parser.error(str(unknown("", given[0], COMMANDS, "command")))
    arguments = parser.parse_args(given)
    configure_logging(arguments.verbose, arguments.quiet)
    output = Output(arguments.json)
    try:
        code: int = arguments.run(arguments, output) or 0
        sys.stdout.flush()
        return code
    except ConceptloaderError as error:
        output.error(error)
        return 2 if isinstance(error, ConfigError) else 1
    except KeyboardInterrupt:
        print("interrupted", file=sys.stderr)
        return 130
    except OSError as error:  # stdout on a full disk, or its reader, `head` for instance, has left
        with contextlib.suppress(OSError, ValueError):  # what is buffered must not fail once more when the process ends
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        if isinstance(error, BrokenPipeError):
            return 141
        print(f"conceptloader: {error}", file=sys.stderr)
        return 1
    except Exception:
        traceback.print_exc()
        remark = "this is a defect of conceptloader; please report it, with the lines above"
        print(f"conceptloader: {remark}", file=sys.stderr)
        return 1


def _with_home(argument: str) -> str:
    """~/ at the start of an argument or of an option's value, which shells leave in --out=~/data."""
    option, equals, value = argument.partition("=") if argument.startswith("--") else ("", "", argument)
    return option + equals + (os.path.expanduser(value) if value.startswith("~/") else value)


def make_parser(chosen: str | None = None) -> argparse.ArgumentParser:
    """chosen: the only command that will be parsed; by default any."""
    parser = argparse.ArgumentParser(
        "conceptloader", description=_DESCRIPTION, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--version", action="version", version=f"conceptloader {__version__}")
    commands = parser.add_subparsers(title="commands", metavar="<command>", required=True)
    for name, summary in COMMANDS.items():
        command = commands.add_parser(name, help=summary, formatter_class=argparse.RawDescriptionHelpFormatter)
        if chosen not in (None, name):
            continue
        module = import_module(f"conceptloader.cli.{name}{'_' * iskeyword(name)}")
        command.description = module.DESCRIPTION
        module.add_arguments(command)
        general = command.add_argument_group("output")
        general.add_argument("--json", action="store_true", help="one JSON object on stdout instead of text")
        general.add_argument("--verbose", "-v", action="store_true", help="log more to stderr")
        general.add_argument("--quiet", "-q", action="store_true", help="log errors only, show no progress")
        command.set_defaults(run=module.run)
    return parser
