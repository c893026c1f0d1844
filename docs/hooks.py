"""What the site needs besides the pages: a reference of public names, an index of tests, no link out of it."""

import ast
import posixpath
import re
from itertools import groupby
from pathlib import Path
from typing import Any

from mkdocs.structure.files import File

import conceptloader

ROOT = Path(__file__).resolve().parents[1]
# A page for each use: its title, what it is for, and its names by module, those that are needed first at the top. A
# public name of these modules that is not listed comes last.
CHAPTERS: dict[str, tuple[str, str, dict[str, str]]] = {
    "loading": (
        "Loading batches",
        "A training loop of your own needs `make_dataloader` alone, whose batches have [these keys](../batch-keys.md). "
        "The other names are for PyTorch's `DataLoader`, for numpy and JAX, and for trainers without an adapter.",
        {
            "": "make_dataloader Loader TensorBatch decode token_mean TokenMean DatasetLosses find_state SampleDataset "
            "collate_fn EpochSampler TrainedLoader EvaluationLoader batches "
            "NumpyLoader GrainSource"
        },
    ),
    "concepts": (
        "Concepts as tensors",
        "What a loss over concepts is computed from, given a batch with a [track](../annotations.md).",
        {
            "concepts": "track TrackTensors token_concepts token_values span_targets span_concepts span_mask "
            "annotation_status"
        },
    ),
    "configuration": (
        "Configurations and mixtures",
        "The [configuration](../configuration.md) in Python, and mixtures whose weights change with the losses.",
        {"": "load_config Config open_blend Blend Mixture Segment", "mixing": "Controller ODM DoReMi"},
    ),
    "datasets": (
        "Datasets",
        "What the [commands for datasets](../cli.md) do, in Python.",
        {
            "": "build adopt annotate open_dataset Dataset verify concat column_writer register_codec",
            "writing": "open_writer create_writer finalize BuildOptions TrackOptions Tokenizer",
        },
    ),
    "runs": (
        "Runs",
        "What the [commands for runs](../cli.md) do, in Python: trace, locate, query, metrics.",
        {
            "trace": "open_run Run trace_step trace_sample query SampleTrace DocumentPart SpanPart "
            "locate_documents locate_where Sighting Member",
            "metrics": "on_step StepMetrics",
        },
    ),
    "trainers": (
        "Trainers",
        "What a script for one of the [trainers](../trainers.md) imports.",
        {
            "integrations.lightning_lm": "",
            "integrations.transformers_lm": "ConceptTrainer ConceptSFTTrainer collate Progress",
            "integrations.accelerate_lm": "AcceleratedLoader AcceleratedEvaluation",
            "integrations.torchtitan_lm": "",
            "integrations.olmo_lm": "",
            "integrations.megatron_lm": "install concepts add_losses set_weights MegatronData ConceptDataset "
            "SplitIterator",
            "integrations.nanotron_lm": "install set_weights build_dataloader save_state",
            "integrations.datatrove_lib": "ConceptBuild ConceptBuildFinish",
        },
    ),
    "errors": (
        "Errors",
        "What each means, and what to do about it: [troubleshooting](../troubleshooting.md).",
        {"errors": "ConceptloaderError ConfigError MissingPackageError FormatError InputError ReadError ResumeError"},
    ),
    "adapters": (
        "Parts for adapters and tests",
        "For authors of [adapters](../trainers.md), and for tests of their own.",
        {
            "adapters": "BaseLoader TrainingRun Entry Observer RunStart RunLog Ranks BatchSchedule Partition Plan "
            "OrderSpec derive_key batch_digest",
            "testing": "random_documents RawDocument write_dataset Layout check_resume global_steps",
        },
    ),
}
# One name of two things that are the same: the loader with its arguments and methods stands first on its page.
OPTIONS = {"Loader": "{inherited_members: true}"}
LINK = re.compile(r"(?<!!)\[(?P<text>[^\]]+)\]\((?P<target>\.\./[^)]*)\)")


def homes(module: str) -> dict[str, str]:
    """The public names of a module of the package, "" for its own, and where each of them is defined."""
    if not module:
        own, modules = conceptloader._PUBLIC, conceptloader._MODULES
        return {name: f"conceptloader.{own[name]}" for name in own if name not in modules and own[name] not in modules}
    if module.startswith("integrations."):
        return adapter(module)
    found: Any = getattr(conceptloader, module)
    return {name: getattr(found, name).__module__ for name in found.__all__}


def adapter(module: str) -> dict[str, str]:
    """The same of an adapter, which is not imported: its framework may be missing, or not work with another one."""
    tree = ast.parse((ROOT / module.replace(".", "/") / "__init__.py").read_text("utf-8"))
    found = {}
    for node in ast.walk(tree):
        if isinstance(node, ast.ImportFrom) and node.level:  # from .data import Name
            found |= {alias.name: str(node.module) for alias in node.names}
        elif isinstance(node, ast.Dict):  # {"data": "Name Other"}
            for home, names in ast.literal_eval(node).items():
                found |= dict.fromkeys(names.split(), home)
    return {name: f"{module}.{home}" for name, home in found.items()}


def names(chapter: str, module: str) -> list[str]:
    """The names of a module that are in a chapter, the listed ones first."""
    found, listed = homes(module), CHAPTERS[chapter][2][module].split()
    everywhere = [name for _, _, modules in CHAPTERS.values() for name in modules.get(module, "").split()]
    unknown = set(listed) - set(found)
    assert not unknown, f"docs/hooks.py: conceptloader.{module} has no {unknown}"
    first = next(name for name, (_, _, modules) in CHAPTERS.items() if module in modules)
    return listed + (sorted(set(found) - set(everywhere)) if chapter == first else [])


def chapter(name: str) -> str:
    """A page of the reference, as directives that are filled in from signatures and docstrings."""
    title, purpose, modules = CHAPTERS[name]
    # It holds the words of all other pages, which say more about them.
    page = ["---", "search: {boost: 0.5}", "---", f"# {title}", "", purpose, ""]
    for module in modules:
        found, path = homes(module), "conceptloader" + f".{module}" * bool(module)
        short = path.rpartition(".")[2]
        page += [f"## `{short}` {{#{short}}}", ""]
        if module:
            home = f"conceptloader.{conceptloader._MODULES.get(module, module)}"
            summary = (ast.get_docstring(ast.parse(source(home))) or "").partition("\n\n")[0]
            page += [f"`{path}`", "", summary, ""]
        for one in names(name, module):
            page += [f"::: {found[one]}.{one}", *([f"    options: {OPTIONS[one]}"] if one in OPTIONS else []), ""]
    return "\n".join(page)


def source(module: str) -> str:
    path = ROOT / module.removeprefix("conceptloader.integrations.").replace(".", "/")
    if module.startswith("conceptloader.integrations."):
        path = ROOT / "integrations" / path.name
    return (path / "__init__.py" if path.is_dir() else path.with_suffix(".py")).read_text("utf-8")


def reference() -> str:
    """The page that says what is in which chapter."""
    page = [
        "# Public names",
        "",
        "Names without a module are `conceptloader.NAME`, imported on first use.",
        "",
        "| chapter | names |",
        "| --- | --- |",
    ]
    for name, (title, _, modules) in CHAPTERS.items():
        listed = [
            f"`{module}`: " * bool(module)
            + ", ".join(f"[`{one}`][{homes(module)[one]}.{one}]" for one in names(name, module))
            for module in modules
        ]
        page.append(f"| [{title}](reference/{name}.md) | {'<br>'.join(listed)} |")
    return "\n".join([*page, ""])


def tests() -> str:
    """The page: what each file of tests says that it is for."""
    head = ["---", "search: {exclude: true}", "---"]
    page = [*head, "# Index of tests", "", "What each file of tests checks, in its own words.", ""]
    for folder, files in groupby(sorted(ROOT.glob("tests/**/test_*.py")), lambda path: path.parent):
        page += [f"## {folder.relative_to(ROOT)}", "", "| file | checks |", "| --- | --- |"]
        for file in files:
            summary = (ast.get_docstring(ast.parse(file.read_text("utf-8"))) or "").split("\n\n")[0]
            page.append(f"| `{file.name}` | {' '.join(summary.split()).replace('|', chr(92) + '|')} |")
        page.append("")
    return "\n".join(page)


def on_config(config: Any) -> Any:
    """The link to the repository, whose address is in setup.py, with the version that the pages are of."""
    (config.repo_url,) = re.findall(r'^ADDRESS = "(.+)"$', (ROOT / "setup.py").read_text("utf-8"), re.M)
    config.repo_name = f"conceptloader {conceptloader.__version__}"
    return config


def on_files(files: Any, config: Any) -> Any:
    made = {"reference.md": reference(), "tests.md": tests()}
    made |= {f"reference/{name}.md": chapter(name) for name in CHAPTERS}
    for name, text in made.items():
        files.append(File.generated(config, name, content=text))
    return files


def on_page_markdown(markdown: str, page: Any, **_: Any) -> str:
    """A link to a file beside docs/ becomes the file's name: the site has pages alone."""

    def shown(match: re.Match[str]) -> str:
        path = posixpath.normpath(posixpath.join("docs", posixpath.dirname(page.file.src_uri), match["target"]))
        name = f"`{path}`"
        if path.startswith("docs/"):
            return match[0]
        return name if match["text"] in (name, "test") else f"{match['text']} ({name})"

    return LINK.sub(shown, markdown)


def on_page_content(html: str, page: Any, files: Any, **_: Any) -> str:
    """Where a docstring names a page, as docs/batch-keys.md, it is a link."""
    if not page.file.src_uri.startswith("reference/"):
        return html

    def linked(match: re.Match[str]) -> str:
        file = files.get_file_from_path(match[1])
        assert file is not None, f"{page.file.src_uri}: a docstring names docs/{match[1]}, which is not there"
        return f'<a href="{file.url_relative_to(page.file)}">{match[0]}</a>'

    return re.sub(r"\bdocs/([\w/-]+\.md)\b", linked, html)
