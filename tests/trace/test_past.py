"""What a run of several launches trained is asked of the run log, whatever the configuration says by now."""

import json
import re
import shutil
from dataclasses import replace

import pytest
import yaml

import conceptloader as cl
from conceptloader.base.hashing import fingerprint
from conceptloader.cli import main
from conceptloader.errors import ConfigError, ResumeError
from conceptloader.order.progress.runlog import FILE_NAME, RunLog
from conceptloader.testing import random_documents, write_dataset
from conceptloader.trace import locate_documents, locate_where, open_run, query, trace_step
from tests.corpora.records import write_rows
from tests.raises import raises
from tests.view.reading import tables

BATCH, FIRST, LAST = 8, 6, 10  # steps of the first launch, and of both


class Life:
    """A folder with data and run.yaml, in which launches of one run follow each other.

    seen: step -> (sample, dataset, ids of the documents in its inputs) of each of its rows, as they were trained.
    """

    def __init__(self, folder):
        self.folder, self.seen = folder, {}
        for k, name in enumerate(("books", "web")):
            write_dataset(folder / name, random_documents(200, seed=k, prefix=name), shards=2)
        self.config = {
            "seq_len": 64,
            "datasets": {"books": {"path": "books", "weight": 1}, "web": {"path": "web", "weight": 3}},
            "outputs": {"document_ids": True},
        }
        self.state = None

    def configure(self, **more):
        path = self.folder / "run.yaml"
        path.write_text(yaml.safe_dump({**self.config, **more}))
        return path

    def launch(self, until, allow=(), log="log", **more):
        """Train up to a step, from where the launch before ended."""
        self.folder.joinpath(log).mkdir(exist_ok=True)
        with cl.make_dataloader(self.configure(**more), micro_batch_size=BATCH, num_samples=until * BATCH) as loader:
            if self.state is not None:
                loader.load_state_dict(self.state, allow_changed=allow)
            loader.log_start(self.folder / log, loader.steps or 0)
            datasets = loader.blend.datasets
            for batch in loader:
                rows = []
                for row, name in enumerate(sorted(datasets)[k] for k in batch["dataset_id"]):
                    numbers = batch["document_ids"][row].unique().tolist()
                    ids = {datasets[name].document_id(number) for number in numbers if number >= 0}
                    rows.append((int(batch["sample_index"][row]), name, ids))
                self.seen[loader.steps - 1] = rows
                self.folder.joinpath(log, f"{loader.steps}.json").write_text(json.dumps(loader.state_dict()))
            self.state = loader.state_dict()

    def samples(self, document):
        return sorted(sample for rows in self.seen.values() for sample, _, ids in rows if document in ids)

    def only_before(self, step):
        """A document of web that only steps before this one have."""
        ids = {
            document: self.samples(document) for rows in self.seen.values() for _, _, ids in rows for document in ids
        }
        return next(one for one in sorted(ids) if one.startswith("web") and max(ids[one]) < step * BATCH)


@pytest.fixture
def life(tmp_path):
    return Life(tmp_path)


def quarantined(life):
    web = cl.open_dataset(life.folder / "web")
    first, stop = web.document_range(web.find_document(life.only_before(FIRST))[0])
    return {"exclude": [{"dataset": "web", "tokens": [first, stop]}]}


def excluded(life):
    (life.folder / "ids.txt").write_text(life.only_before(FIRST))
    return {"exclude": [{"at": 0, "file": "ids.txt"}]}


def reweighted(life):
    datasets = life.config["datasets"]
    return {"datasets": {name: {**datasets[name], "weight": 4 - datasets[name]["weight"]} for name in datasets}}


def other_data(life):
    write_dataset(life.folder / "web2", random_documents(300, seed=9, prefix="page"))
    datasets = life.config["datasets"]
    return {"datasets": {**datasets, "web": {**datasets["web"], "path": "web2"}}}


CHANGES = {
    "nothing": (lambda life: {}, ()),
    "a later phase": (lambda life: {"phases": [{"at": (FIRST + 1) * BATCH, "weights": {"books": 1}}]}, ()),
    "never read": (quarantined, ()),
    "exclude": (excluded, ["exclude"]),
    "seed": (lambda life: {"seed": 77}, ["seed"]),
    "weights": (reweighted, ["phases"]),
    "data": (other_data, ["datasets.web"]),
}


@pytest.mark.parametrize("with_config", [True, False])
@pytest.mark.parametrize("change", CHANGES)
def test_each_launch_answers_for_what_it_trained(life, change, with_config, capsys):
    """By all ways to ask; before the log had configurations, the past was computed with the second launch's."""
    more, allow = CHANGES[change]
    life.launch(FIRST)
    chosen = life.only_before(FIRST)
    later = more(life)
    life.launch(LAST, allow, **later)
    log, config = life.folder / "log", life.configure(**later)
    run = open_run(config if with_config else None, log)

    for step, rows in life.seen.items():
        traced = trace_step(run, step)
        found = [(one.sample, one.dataset, {part.id for part in one.documents if part.inputs}) for one in traced]
        assert found == rows
        assert [one.places[0].step for one in traced] == [step] * BATCH
        by_table = {(row["sample"], row["id"]) for row in query(run, "from parts", steps=(step, step + 1)).to_pylist()}
        ids = [(one.sample, [part.id for part in one.documents] or [None]) for one in traced]
        assert by_table == {(sample, one) for sample, those in ids for one in those}

    assert len(list(run.eras())) == (1 if change in ("nothing", "a later phase") else 2)
    whole = [one for step in range(LAST) for one in trace_step(run, step)]
    for document in {chosen, "web-0", "books-3", *(["page-1"] if change == "data" else [])}:
        expected = [one.sample for one in whole if document in {part.id for part in one.documents}]
        seen = list(locate_documents(run, [document], LAST * BATCH))
        assert [one.sample for one in seen] == expected
        assert [one.places[0].step for one in seen] == [sample // BATCH for sample in expected]
        text = f"select first_sample from documents where id = '{document}'"
        table = query(run, text, steps=(0, LAST)).to_pylist()
        firsts = [one["first_sample"] for one in table if one["first_sample"] is not None]
        assert firsts == expected[:1]
        (life.folder / "one.txt").write_text(document)
        asked = ["locate", "--run-log", log, "--documents", life.folder / "one.txt", "--check"]
        assert main([*map(str, asked)]) == bool(expected)
    found_where = locate_where(run, "'concept-1' in concepts", LAST * BATCH)
    concepts = [one.sample for one in found_where if one.inputs]
    having = [one for one in whole if any("concept-1" in (s.names or ()) for s in one.spans.get("concepts", []))]
    assert sorted(concepts) == [one.sample for one in having]

    for step in (2, LAST - 1):
        assert main(["trace", "--run-log", str(log), "--step", str(step), "--html", str(log / "page.html")]) == 0
        page, there = tables(log / "page.html"), trace_step(run, step)
        assert [row[5:7] for row in page["Samples"][1:]] == [(one.dataset, str(one.window)) for one in there]

    sources = query(run, "from datasets", steps=(0, LAST)).to_pylist()
    tokens = sum(part.inputs[1] - part.inputs[0] for one in whole for part in one.documents if part.inputs)
    assert (sum(row["samples"] for row in sources), sum(row["tokens"] for row in sources)) == (LAST * BATCH, tokens)
    sums = "sum(samples) as samples, sum(seen) as tokens, sum(size) as size"
    by = query(run, f"select dataset, {sums} from documents group by all", steps=(0, LAST)).to_pylist()
    for name in ("samples", "tokens", "size"):
        assert {row["dataset"]: row[name] for row in by} == {row["dataset"]: row[name] for row in sources}


def test_datasets_that_were_moved(life, capsys, tmp_path):
    life.launch(FIRST)
    life.launch(LAST, **quarantined(life))
    log, moved = life.folder / "log", tmp_path / "elsewhere"
    before = [trace_step(open_run(None, log), step) for step in (3, 8)]
    moved.mkdir()
    for name, one in life.config["datasets"].items():
        shutil.move(life.folder / name, moved / name)
        one["path"] = str(moved / name)
    assert main(["trace", "--run-log", str(log), "--step", "3"]) != 0
    assert re.search(r"launch of step 6 .*books.*present path", capsys.readouterr().err)
    assert [trace_step(open_run(life.configure(), log), step) for step in (3, 8)] == before


def test_a_configuration_that_gives_another_order_than_the_log(life, caplog):
    """The log answers for what was trained and for what its last launch plans, and says so."""
    log = life.folder / "log"
    with cl.batches(life.configure(), micro_batch_size=BATCH) as loader:
        loader.log_start(log, 0)

    def ask(config):
        return [trace_step(open_run(config, log), step) for step in range(9)]

    trained = ask(life.configure())
    assert not caplog.records
    assert ask(life.configure(seed=5, skip=[{"at": 8, "count": 4}])) == trained
    assert "differs from that of the launch at step 0" in caplog.records[0].getMessage()


def test_masks_that_can_no_longer_be_reproduced(life):
    ids = life.folder / "ids.txt"
    ids.write_text("web-3\n")
    excluding = {"exclude": [{"at": 16, "file": "ids.txt"}]}
    life.launch(FIRST, **excluding)
    chosen = life.only_before(FIRST)
    ids.write_text(f"web-3\n{chosen}\n")
    life.launch(LAST, ["exclude"], **excluding)
    log = life.folder / "log"
    run = open_run(life.configure(**excluding), log)
    assert [one.sample for one in trace_step(run, FIRST)] == list(range(FIRST * BATCH, (FIRST + 1) * BATCH))
    counted = lambda: query(run, "from datasets", steps=(0, 9))  # noqa: E731
    for ask in (lambda: trace_step(run, 1), lambda: locate_documents(run, ["web-3"], 80), counted):
        with raises(ResumeError, "launch of step 0", "exclude of web", fix=f"restore {ids}"):
            ask()
    ids.write_text("web-3\n")
    with raises(ResumeError, "launch of step 6", "exclude of web"):
        open_run(None, log)
    later = life.configure(exclude=[{"at": 16, "ids": ["web-3", chosen]}])  # what the second launch excluded
    run = open_run(later, log)
    assert [one.sample for one in locate_documents(run, [chosen], LAST * BATCH)] == life.samples(chosen) != []


def test_a_launch_without_a_configuration(life):
    """As of Megatron-LM's own loader: nothing is known of its samples, and all of a later launch's."""
    life.launch(FIRST)
    life.launch(LAST)
    log = life.folder / "log" / FILE_NAME
    lines = [json.loads(line) for line in log.read_text().splitlines()]
    next(line for line in lines if line["kind"] == "start").pop("config")
    write_rows(log, lines)
    run = open_run(life.configure(), log)
    assert [one.sample for one in trace_step(run, FIRST)] == list(range(FIRST * BATCH, (FIRST + 1) * BATCH))
    with raises(ConfigError, FILE_NAME, "no configuration of the launch at step 0", fix="steps of other launches"):
        trace_step(run, 1)


def test_a_dataset_that_was_rebuilt(life):
    life.launch(FIRST)
    shutil.rmtree(life.folder / "web")
    write_dataset(life.folder / "web", random_documents(200, seed=8, prefix="web"), shards=2)
    for config in (None, life.configure()):
        with raises(ResumeError, "datasets.web.stream_fingerprint", fix="restore the dataset"):
            open_run(config, life.folder / "log")


def test_tracks_that_were_changed_since(life, caplog):
    life.launch(2)
    log = life.folder / "log"
    open_run(None, log)
    assert not caplog.records
    shutil.rmtree(life.folder / "web")
    documents = [replace(one, spans={}) for one in random_documents(200, seed=1, prefix="web")]
    write_dataset(life.folder / "web", documents, shards=2)
    open_run(None, log)
    assert [record.getMessage() for record in caplog.records] == [
        "datasets.web: its tracks have changed since the launch of step 0; spans are shown as they are now"
    ]


def test_masks_that_came_and_went(life):
    """The first and the third launch have one order and one set of masks, the second another."""
    life.launch(FIRST)
    life.launch(LAST, **quarantined(life))
    life.launch(LAST + 4)
    run = open_run(None, life.folder / "log")
    assert [era.first for era in run.eras()] == [0, FIRST * BATCH, LAST * BATCH]
    rows = query(run, "from datasets", steps=(0, LAST + 4)).to_pylist()
    whole = query(open_run(life.configure()), "from datasets", samples=(LAST + 4) * BATCH).to_pylist()
    assert [row["size"] for row in rows] == [row["size"] for row in whole]


def test_a_run_that_came_from_another_folder(life, capsys):
    """Weights that were set live before are in the log of the old folder only: what it decided is not known here."""

    def live(until, log, weights):
        life.folder.joinpath(log).mkdir(exist_ok=True)
        with cl.make_dataloader(life.configure(), micro_batch_size=BATCH, num_samples=until * BATCH) as loader:
            if life.state is not None:
                loader.load_state_dict(life.state)
            loader.log_start(life.folder / log, loader.steps or 0)
            for batch in loader:
                life.seen[loader.steps - 1] = batch["sample_index"].tolist(), batch["dataset_id"].tolist()
                loader.set_weights({"books": weights[loader.steps % len(weights)], "web": 3})
            life.state = loader.state_dict()

    live(FIRST, "old", [1, 4, 2])
    live(LAST, "new", [7, 5])
    live(LAST + 3, "new", [2])
    run = open_run(None, life.folder / "new")
    assert len(list(run.eras(FIRST * BATCH))) == 1
    for step in range(FIRST, LAST + 3):
        traced = trace_step(run, step)
        names = [["books", "web"][k] for k in life.seen[step][1]]
        assert [(one.sample, one.dataset) for one in traced] == list(zip(life.seen[step][0], names, strict=True))
        assert [one.places[0].step for one in traced] == [step] * BATCH
    earlier = "the folder of the earlier launches' checkpoints, from which this run was resumed"
    for ask in (
        lambda: trace_step(run, FIRST - 1),
        lambda: trace_step(run, 0),
        lambda: locate_documents(run, ["web-1"], 80),
        lambda: query(run, "from datasets", steps=(0, LAST)),
        lambda: query(run, "from datasets", samples=LAST * BATCH),
        lambda: run.at(3),
    ):
        with raises(ConfigError, fix=earlier):
            ask()
    whole = open_run(None, life.folder / "old")
    for step in range(FIRST):
        assert [one.sample for one in trace_step(whole, step)] == life.seen[step][0]


def test_a_configuration_in_the_log(life):
    """Is the launch's, and its hash tells whether somebody has edited it."""
    other = {"document_ids": True, "loss_on_eos": False}
    life.launch(2)
    life.launch(4, seed=1234, outputs=other)
    log = RunLog(life.folder / "log")
    assert cl.load_config(log.config(log.starts[-1])) == cl.load_config(life.configure(outputs=other))
    assert log.config(log.starts[0]) == cl.load_config(life.configure()).to_dict()
    log.path.write_text(log.path.read_text().replace('"seed":1234,', '"seed":1235,'))
    with pytest.raises(cl.errors.FormatError, match="hash"):
        RunLog(life.folder / "log")


def test_splits_as_whole_numbers_and_fractions(life):
    hashes = {cl.open_blend(life.configure(split_documents=split)).spec.hash for split in ([0, 0.9], [0.0, 0.9])}
    assert len(hashes) == 1


def test_a_checkpoint_knows_what_the_command_line_said(life, capsys):
    life.launch(2, seed=7, split_documents=[0, 0.8])
    del life.config["seq_len"]
    words = ["trace", str(life.configure()), "--checkpoint", str(life.folder / "log/2.json")]
    assert main([*words, "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert (found["resumes_at"], found["resumed_spec_hash"]) == (2 * BATCH, found["spec_hash"])
    assert main(["trace", str(life.configure(seed=8)), *words[2:]]) == 1
    assert "seed: saved 7, now 8" in capsys.readouterr().err


def test_documents_cut_at_another_length(tmp_path):
    """Members of documents say no length, so that two launches had the same ones."""
    write_dataset(tmp_path / "docs", random_documents(100, seed=7), mode="document")
    state, tokens = None, []
    for step, seq_len in ((0, 64), (2, 32)):
        config = {"seq_len": seq_len, "datasets": {"docs": {"path": str(tmp_path / "docs")}}}
        with cl.batches(config, micro_batch_size=BATCH, num_samples=BATCH * (step + 2)) as loader:
            if state is not None:
                loader.load_state_dict(state)
            loader.log_start(tmp_path / "log", step)
            tokens += [int(batch["loss_mask"].sum()) for batch in loader]
            state = loader.state_dict()
    run = open_run(log=tmp_path / "log")
    for step, trained in enumerate(tokens):
        parts = [part for one in trace_step(run, step) for part in one.documents if part.labels]
        assert sum(part.labels[1] - part.labels[0] for part in parts if part.labels) == trained


def test_a_run_log_of_another_name_is_not_taken_for_that_in_its_folder(tmp_path):
    life = Life(tmp_path)
    life.launch(FIRST)
    other = shutil.copy(tmp_path / "log" / FILE_NAME, tmp_path / "log" / "first.jsonl")
    assert open_run(log=tmp_path / "log" / FILE_NAME).history is not None
    with raises(ConfigError, "run log", other):
        open_run(log=other)
    absent = tmp_path / "log" / "second"  # its folder has a log, of another run
    with raises(ConfigError, "run log", f"no directory {absent}"):
        open_run(log=absent)


def test_a_url_whose_password_no_log_has(tmp_path):
    write_dataset(tmp_path / "web", random_documents(9, seed=1))
    with cl.batches({"seq_len": 8, "datasets": {"web": {"path": str(tmp_path / "web")}}}, micro_batch_size=1) as loader:
        loader.log_start(tmp_path, 0)
    log = tmp_path / FILE_NAME
    text = log.read_text()
    (line,) = [one for one in map(json.loads, text.splitlines()) if one["kind"] == "config"]
    changed = {**line["config"], "datasets": {"web": {"path": "https://me:***@host/web"}}}
    was, now = (json.dumps(one, separators=(",", ":")) for one in (line["config"], changed))
    log.write_text(text.replace(was, now).replace(line["hash"], fingerprint(changed)))
    with raises(ConfigError, "datasets.web", "https://me:***@host/web", fix="give CONFIG"):
        open_run(log=tmp_path)
