"""Documents and chunks joined and built by datatrove's executors: the bytes of the command, whatever the tasks."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from datatrove.executor import LocalPipelineExecutor

from conceptloader.cli import main
from conceptloader.errors import ConfigError
from conceptloader.ingest.chunks.join import Documents
from conceptloader.ingest.chunks.options import Chunks, ConceptTable
from conceptloader.integrations.datatrove_lib import ChunkedBuild
from conceptloader.integrations.datatrove_lib import chunks as chunks_module
from tests.corpora.chunked import KINDS, Chunked, make
from tests.corpora.tokenizers import END, byte_level
from tests.datatrove.test_writer import content
from tests.raises import raises


def arguments(corpus: Chunked, **given: Any) -> tuple[Documents, Chunks]:
    concepts = ConceptTable(path=str(corpus.path / "concepts.parquet"), kind="concept_type")
    chunks = Chunks(
        files=corpus.files("chunks"), join="doc", labels={kind: kind for kind in KINDS}, concepts=concepts,
        starts="starts", number="k", status="status", scores={kind: f"{kind}_scores" for kind in KINDS}, **given,
    )  # fmt: skip
    return Documents(files=corpus.files("documents"), content="body", keep=["source"]), chunks


def build(corpus: Chunked, out: Path, tasks: int, **given: Any) -> Path:
    before = None
    for step in ChunkedBuild.stages(*arguments(corpus, **given), out, "bytes", shard_input_bytes=900):
        logs = str(out.parent / f"{out.name}-logs" / step.stage)
        before = LocalPipelineExecutor([step], tasks=step.tasks(tasks), workers=1, logging_dir=logs, depends=before)
    assert before is not None
    before.run()
    return out


@pytest.fixture(scope="module")
def corpus(tmp_path_factory: pytest.TempPathFactory) -> Chunked:
    made = make(tmp_path_factory.mktemp("corpus"), np.random.default_rng(1), documents=24)
    made.score()
    return made.write()


def test_the_bytes_of_the_command(corpus: Chunked, tmp_path: Path) -> None:
    command = ["build", *corpus.files("documents"), "--column", "text=body", "--metadata-column", "source", "--quiet"]
    command += [*corpus.recipe(scores={kind: f"{kind}_scores" for kind in KINDS}), "--tokenizer", "bytes"]
    assert main([*command, "--shard-input-bytes", "900", "--workers", "1", "--out", str(tmp_path / "command")]) == 0
    expected = content(tmp_path / "command")
    assert sum(name.endswith(".shard.json") for name in expected) > 2
    assert content(build(corpus, tmp_path / "ds", tasks=2)) == expected
    assert not (tmp_path / "ds.joined").exists()
    for again in (False, True):  # by 5 tasks of each stage, the last one first; then all once more
        for step in ChunkedBuild.stages(*arguments(corpus), tmp_path / "others", "bytes", shard_input_bytes=900):
            for rank in reversed(range(step.tasks(5))):
                if not again or rank == 0:
                    step.run(rank=rank, world_size=step.tasks(5))
        assert content(tmp_path / "others") == expected


def test_stages_out_of_turn_and_bad_chunks(corpus: Chunked, tmp_path: Path) -> None:
    ids, deal, join, write, finish = ChunkedBuild.stages(*arguments(corpus), tmp_path / "ds", "bytes")
    with raises(ConfigError, found="1 tasks of 'ids' that are not finished"):
        deal.run(rank=0, world_size=2)
    with raises(ConfigError, found="2 tasks"):
        finish.run(rank=0, world_size=2)
    ids.run()
    deal.run(rank=1, world_size=2)
    with raises(ConfigError, found="2 tasks of 'deal' that are not finished"):
        join.run(rank=0, world_size=2)
    deal.run(rank=0, world_size=2)
    join.run()
    with raises(ConfigError, found="the join of other files or options"):
        ChunkedBuild("join", *arguments(corpus, text="text"), tmp_path / "ds", "bytes").run()
    write.run()
    finish.run()
    assert (tmp_path / "ds" / "manifest.json").exists()


def test_the_end_of_documents_is_that_of_a_build(corpus: Chunked, tmp_path: Path) -> None:
    """A tokenizer with two names for it is no problem where none is appended; a named eos may be there twice."""
    made = byte_level()
    made.add_special_tokens(["</s>"])
    made.save(str(tmp_path / "tokenizer.json"))
    given = *arguments(corpus), tmp_path / "ds", str(tmp_path / "tokenizer.json")
    with raises(ConfigError, "eos"):
        ChunkedBuild("ids", *given).run()
    ChunkedBuild("ids", *given, append_eos=False).run()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(chunks_module, "build_chunked", lambda _, options, part: (None, found.append(options.asked)))
        found: list[frozenset[str]] = []
        ChunkedBuild("finish", *given, eos=END).run()
        ChunkedBuild("finish", *given, append_eos=False).run()
    assert found == [{"bos", "text"}, {"bos", "text", "eos"}]
