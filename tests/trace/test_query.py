"""Tables that SQL asks: the command, ways out of the database, damage. What is in them: test_answers.py."""

from itertools import chain, islice
from pathlib import Path

import pyarrow.parquet
import pytest

import conceptloader as cl
from conceptloader.config import open_blend
from conceptloader.errors import ConfigError, FormatError
from conceptloader.format.parquet import write_parquet
from conceptloader.format.spec.manifest import Tokenizer
from conceptloader.testing import random_documents, write_dataset
from conceptloader.trace import Run, locate_documents, open_run, query, trace_step
from conceptloader.trace.tables import read_tables
from tests.corpora.small import written
from tests.raises import cells, raises


def test_concept_ids_without_names_may_have_32_bits(tmp_path):
    document = [1] * 9, {"c": [(0, 4, [3, 1 << 31, (1 << 32) - 2])]}
    tokenizer = Tokenizer(name="t", vocab_size=9, eos_id=0)
    path = written(tmp_path / "d", [document], mode="stream-with-metadata", tokenizer=tokenizer, tracks={"c": {}})
    blend = open_blend({"seq_len": 8, "datasets": {"d": {"path": str(path)}}})
    (row,) = query(Run(blend=blend), "from parts", samples=1).to_pylist()
    places = "step rank micro_batch row sample dataset epoch window"
    assert " ".join(row) == f"{places} document id start stop inputs source_document c"
    assert row["c"] == [3, 1 << 31, (1 << 32) - 2]


def test_without_a_log(run):
    lonely = Run(blend=run.blend)
    assert all(one.places == [] for one in locate_documents(lonely, ["web-9"]))
    assert {one.epoch for one in locate_documents(run, ["books-3"])} == {0}, "the first epoch, without a length"
    with pytest.raises(ConfigError, match="steps cannot be mapped to samples"):
        trace_step(lonely, 0)
    with pytest.raises(ConfigError, match="steps cannot be mapped to samples"):
        query(lonely, "from samples", steps=(0, 2))
    with pytest.raises(ConfigError, match="neither of steps and samples"):
        query(lonely, "from samples")
    with pytest.raises(ConfigError, match="found 5:5"):
        query(run, "from samples", steps=(5, 5))


@pytest.mark.parametrize(
    ("kind", "at"),
    [("documents.bin", 80), ("documents.bin", -20), ("concepts.spans", -20), ("concepts.spans", 24 * 12)],
)
def test_damaged_tables_are_refused(tmp_path, kind, at):
    raw = random_documents(200, seed=5, mean_length=60)
    path = Path(write_dataset(tmp_path / "d", raw, encoding="spans"))
    file = path / f"00000.{kind}"
    data = bytearray(file.read_bytes())
    data[at + 5 if at > 0 else at] ^= 0x40
    file.write_bytes(data)
    config = {"seq_len": 16, "datasets": {"d": {"path": str(path)}}, "loader": {"verify_files": False}}
    with pytest.raises(FormatError):
        query(Run(blend=open_blend(config)), "from parts", samples=700)


OUT = """
from '/etc/passwd'
from read_text('/etc/passwd')
from read_csv('{folder}/a.csv')
from 'a.csv'
copy (select 1) to '{folder}/out.csv'
attach '{folder}/out.db'
install httpfs
load httpfs
set enable_external_access = true
set lock_configuration = false
reset lock_configuration
from OUT
from run
pragma database_list
export database '{folder}/out'
from glob('/etc/*')
select getenv('HOME')
from read_blob('/proc/self/environ')
from sniff_csv('/etc/passwd')
from duckdb_secrets()
select 1; copy (select 1) to '{folder}/out.csv'
create table t as from '/etc/passwd'
from query_table(['/etc/passwd'])
from parquet_metadata('{folder}/a.csv')
"""


@pytest.mark.parametrize("text", OUT.strip().splitlines())
def test_no_way_leads_out_of_the_database(run, tmp_path, monkeypatch, text):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "a.csv").write_text("a,b\n1,2\n")
    with pytest.raises(ConfigError):
        query(run, text.format(folder=tmp_path), steps=(0, 2))
    assert [one.name for one in tmp_path.iterdir()] == ["a.csv"]


MEANT = """
select sen from documents | an unknown column or table 'sen' | did you mean seen?
select d.frist_step from documents d | 'frist_step' | did you mean first_step?
from sample | 'sample' | did you mean sample
select x.step from samples | 'x' | -
select step from | syntax error | -
select step + 'x' from samples | Could not convert string | -
- | 0 statements | ask one after the other
"""


@pytest.mark.parametrize(("text", "found", "fix"), cells(MEANT))
def test_what_was_meant_is_named(run, text, found, fix):
    with pytest.raises(ConfigError, match="query: found") as error:
        query(run, text, steps=(0, 2))
    assert found in error.value.found
    assert fix in error.value.fix


def test_a_table_may_be_asked_twice(run):
    text = "select count(*) as n from samples a join samples b using (sample) where a.step = b.step"
    (row,) = query(run, text, steps=(0, 4)).to_pylist()
    assert row["n"] == query(run, "from samples", steps=(0, 4)).num_rows
    assert query(run, "from datasets where false", steps=(0, 4)).column_names == [
        "dataset", "samples", "tokens", "size", "epochs",
    ]  # fmt: skip


def test_values_of_a_table_are_what_they_are(tmp_path, run):
    """Integers of 64 bits; NaN is null; times are those of UTC, wherever the machine is."""
    rows = {
        "n": pyarrow.array([(1 << 63) + k for k in (1, 2, 3)], "uint64"),
        "x": [1.0, float("nan"), 2.0],
        "when": [f"2024-01-0{k}T00:00:00+02:00" for k in (1, 2, 3)],
    }
    pyarrow.parquet.write_table(pyarrow.table(rows), tmp_path / "a.parquet")
    text = 'select n, x, "when"::timestamptz as at from t where n > 9223372036854775809 order by n'
    found = query(run, text, steps=(0, 1), tables=read_tables([f"t={tmp_path}/a.parquet"]))
    assert [(row["n"], row["x"]) for row in found.to_pylist()] == [((1 << 63) + 2, None), ((1 << 63) + 3, 2)]
    assert str(found["at"][0]) == "2024-01-01 22:00:00+00:00"


@pytest.mark.parametrize("rows", [0, 1, 4, 8, 9])
def test_a_parquet_table_of_just_some_row_groups_is_whole(tmp_path, rows):
    batches = [pyarrow.record_batch({"n": pyarrow.array(range(k, min(k + 8, rows)))}) for k in range(0, rows or 1, 8)]
    assert write_parquet(batches, str(tmp_path / "table"), row_group=4) == rows
    assert pyarrow.parquet.read_table(tmp_path / "table")["n"].to_pylist() == list(range(rows))


def test_what_does_not_exist(run):
    with raises(ConfigError, found="no 'nobody' in books, code, web"):
        locate_documents(run, ["nobody"])
    with raises(ConfigError, fix="name the dataset"):
        locate_documents(run, [3])
    with raises(ConfigError, found="'music'"):
        locate_documents(run, [3], dataset="music")


def test_a_search_that_is_left_ends(run):
    """Of samples that nobody could look through."""
    assert list(islice(locate_documents(run, ["web-9"], 10**13), 5)) == list(locate_documents(run, ["web-9"], 4000))[:5]


@pytest.mark.parametrize("last_batch", ["partial", "drop"])
def test_a_last_batch_that_is_not_full(run, last_batch, tmp_path):
    """The run log says where the run ends: its last step has the samples that were trained, and none comes after it."""
    options = {"micro_batch_size": 4, "global_batch_size": 16, "num_samples": 37}
    trained = []
    for rank in range(2):
        config = run.blend.config.to_dict()
        with cl.make_dataloader(config, dp_rank=rank, dp_size=2, last_batch=last_batch, **options) as loader:
            if not rank:
                loader.log_start(tmp_path, 0)
            trained += [sample for batch in loader for sample in batch["sample_index"].tolist()]
    logged, steps = open_run(log=str(tmp_path)), 2 if last_batch == "drop" else 3
    assert len(trained) == {"partial": 37, "drop": 32}[last_batch]
    found = [[one.sample for one in trace_step(logged, step)] for step in range(steps)]
    assert [*chain(*found)] == sorted({*trained})
    with raises(ConfigError, f"step {steps}", f"ends before step {steps}, after 37 samples"):
        trace_step(logged, steps)
    assert (
        query(logged, "from datasets", steps=(0, steps))["samples"].to_pylist()
        == query(logged, "from datasets", samples=len({*trained}))["samples"].to_pylist()
    )
