"""A receipt says what locate says, is checked without this package, and no change of it passes."""

import copy
import hashlib
import json
import shutil
import string
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

import conceptloader as cl
from conceptloader.cli import main
from conceptloader.errors import ConfigError, FormatError, ResumeError
from conceptloader.receipts import RunStatement, make_receipt, prepare, state_run
from conceptloader.receipts.trees import FILE
from conceptloader.trace import locate_document, open_run
from tests.raises import raises
from tests.receipt.conftest import SAMPLES, Made, build, configure, train
from tests.receipt.test_prepare import edit

WRONG = (ValueError, TypeError, KeyError, IndexError, AttributeError, ArithmeticError)
"""What a receipt that is no receipt raises in the verifier, which its main turns into a refusal."""


BARE: dict[str, Any] = {"phases": [], "exclude": [], "skip": []}
PHASE = {"start": 0, "weights": {"web": 2, "code": 1, "books": 1}}


def receipt_of(stated: RunStatement, document: str | int, dataset: str | None = None) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(json.dumps(make_receipt(stated, document, dataset)))
    return found


def test_receipts_are_what_locate_says(made: Made, verifier: ModuleType) -> None:
    seen = documents = 0
    for name, count, every in (("web", 60, 4), ("code", 80, 5), ("books", 500, 20)):
        for document in [f"{name}-{number}" for number in range(0, count, every)] + ["web-7", "web-8", "code-3"]:
            receipt = receipt_of(made.stated, document)
            found = verifier.verify(receipt, made.stated.root)
            expected = locate_document(made.stated.run, document, SAMPLES)
            assert [one[:2] for one in found] == [[one.places[0].step, one.sample] for one in expected]
            for (_, _, begin, end), one in zip(found, expected, strict=True):
                assert one.inputs == ((begin, min(end, 16)) if begin < 16 else None)
                assert one.labels == ((max(begin - 1, 0), end - 1) if end > 1 else None)
            seen, documents = seen + len(found), documents + 1
    assert documents >= 40
    assert seen > 300


def test_what_was_published_stays_so(made: Made) -> None:
    assert made.stated.root == "facf04e0df70994a2e879b302360bbb731625b54faab9f37aee18ceb38202802"
    receipt = json.dumps(make_receipt(made.stated, "web-9"), sort_keys=True).encode()
    assert hashlib.sha256(receipt).hexdigest() == "71a7be24d8d11dadac3c22c6394a6dc96692f037ff3fcd3c900455cca2719735"


def test_it_holds_the_hash_that_anyone_can_compute(made: Made) -> None:
    dataset = made.stated.run.blend.datasets["code"]
    (number,) = dataset.find_document("code-12")
    tokens = dataset.tokens(*dataset.document_range(number)).tolist()
    content = b"".join(token.to_bytes(4, "little") for token in tokens)
    assert receipt_of(made.stated, "code-12")["document"]["sha256"] == hashlib.sha256(content).hexdigest()
    assert receipt_of(made.stated, number, "code") == receipt_of(made.stated, "code-12")


def test_a_hundred_sightings_take_less_than_4_kb(made: Made) -> None:
    receipts = [make_receipt(made.stated, f"web-{number}") for number in range(60)]
    some = [receipt for receipt in receipts if 80 <= len(receipt["sightings"]) <= 130]
    assert some
    for receipt in some:
        size = len(json.dumps(receipt, separators=(",", ":")))
        assert size - 20 * max(0, len(receipt["sightings"]) - 100) < 4000


def test_the_verifier_needs_the_standard_library_alone(made: Made, tmp_path: Path, checkout: Path) -> None:
    path = tmp_path / "receipt.json"
    path.write_text(json.dumps(make_receipt(made.stated, "web-9")))
    command = [sys.executable, "-I", "-S", str(checkout / "examples/receipt/verify_receipt.py"), str(path)]
    good = subprocess.run([*command, made.stated.root], capture_output=True, text=True)
    assert good.returncode == 0
    assert "web-9" in good.stdout
    bad = subprocess.run([*command, made.stated.root[::-1]], capture_output=True, text=True)
    assert bad.returncode == 1
    assert "published" in bad.stderr
    path.write_text('{"format": 5}')
    bad = subprocess.run([*command, made.stated.root], capture_output=True, text=True)
    assert bad.returncode == 1
    assert "refused" in bad.stderr
    assert "Traceback" not in bad.stderr


_BASE64 = string.ascii_uppercase + string.ascii_lowercase + string.digits + "+/"


def changes(value: Any) -> Iterator[Any]:
    """Other values in place of one."""
    if isinstance(value, bool) or value is None:
        raise AssertionError("a receipt has none")
    if isinstance(value, int):
        yield from (value + 1, value - 1, float(value), str(value), None, -value - 5)
        if value in (0, 1):
            yield bool(value)
    elif isinstance(value, str):
        if value.endswith("="):  # other bits that are not of the 32 bytes
            yield value[:-2] + _BASE64[_BASE64.index(value[-2]) ^ 1] + "="
        yield from (value + "A", value[:-1] + ("B" if value[-1:] != "B" else "C"), value.swapcase() + " ", None, 7)
    elif isinstance(value, list):
        yield from ([*value, 0], [], None, {}) if value else ([0], None)
        if len(value) > 1:
            yield from (value[:-1], value[1:], value[::-1], [*value, value[-1]])
    else:
        yield from ({**value, "more": 0}, [], None)
        for key in value:
            yield {name: one for name, one in value.items() if name != key}


def places(value: Any, path: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    yield path
    for key in value if isinstance(value, dict) else range(len(value)) if isinstance(value, list) else ():
        yield from places(value[key], (*path, key))


@pytest.mark.parametrize("document", ["web-9", "books-40", "code-3"])
def test_no_change_of_any_field_passes(made: Made, verifier: ModuleType, document: str) -> None:
    receipt = receipt_of(made.stated, document)
    assert verifier.verify(receipt, made.stated.root)
    tried = 0
    for path in places(receipt):
        at = receipt
        for key in path:
            at = at[key]
        for other in changes(at):
            if json.dumps(other) == json.dumps(at):
                continue  # a palindrome
            changed: Any = copy.deepcopy(receipt)
            if path:
                inside = changed
                for key in path[:-1]:
                    inside = inside[key]
                inside[path[-1]] = other
            else:
                changed = other
            with pytest.raises((verifier.Refused, *WRONG)):
                verifier.verify(changed, made.stated.root)
            tried += 1
    assert tried > 500


@pytest.mark.parametrize("part", ["run", "starts", "members"])
def test_a_consistent_lie_has_another_root(made: Made, verifier: ModuleType, part: str) -> None:
    """Whoever makes a receipt can make all of it agree, but for the root that was published before."""
    receipt = receipt_of(made.stated, "web-9")
    change: dict[str, Callable[[Any], Any]] = {
        "run": lambda run: run.update(seed=8),
        "starts": lambda run: run["starts"].pop(),
        "members": lambda run: run["members"]["web"][4].append([0, 1 << 40, -1]),  # as if nothing of it were read
    }
    change[part](receipt["run"])
    receipt["root"] = hashlib.sha256(verifier.canonical(receipt["run"])).hexdigest()
    if part == "members":
        receipt["sightings"] = []
        assert verifier.verify(receipt, receipt["root"]) == []  # consistent, of another run
    with pytest.raises(verifier.Refused):
        verifier.verify(receipt, made.stated.root)


@pytest.mark.parametrize(
    ("change", "found"),
    [
        (lambda run: run["starts"][1].__setitem__(1, 721), "step 90"),
        (lambda run: run["starts"][0].__setitem__(1, 8), "sample 0"),
        (lambda run: run.update(samples=SAMPLES + 1), "end with a step"),
        (lambda run: run["phases"].pop(0), "phases"),
    ],
)
def test_a_run_that_cannot_be_is_refused_with_its_own_root(
    made: Made, verifier: ModuleType, change: Callable[[Any], Any], found: str
) -> None:
    receipt = receipt_of(made.stated, "web-9")
    change(receipt["run"])
    receipt["root"] = hashlib.sha256(verifier.canonical(receipt["run"])).hexdigest()
    with pytest.raises(verifier.Refused, match=found):
        verifier.verify(receipt, receipt["root"])


def test_a_document_of_nowhere_has_no_receipt_without_sightings(made: Made, verifier: ModuleType) -> None:
    receipt = receipt_of(made.stated, "web-9")
    receipt["document"]["id"], receipt["sightings"] = "web-none", []
    with pytest.raises(verifier.Refused, match="no dataset"):
        verifier.verify(receipt, made.stated.root)


def test_a_receipt_is_of_its_own_document(made: Made, verifier: ModuleType) -> None:
    mine, other = receipt_of(made.stated, "web-9"), receipt_of(made.stated, "web-12")
    for part in ("document", "path", "shard", "shard_path", "sightings"):
        if mine[part] != other[part]:
            with pytest.raises((verifier.Refused, *WRONG)):
                verifier.verify({**mine, part: other[part]}, made.stated.root)


# What is refused when a receipt is made


@pytest.fixture
def copied(made: Made, tmp_path: Path) -> Path:
    """The run in a folder of its own, to be changed."""
    return Path(shutil.copytree(made.folder, tmp_path / "run"))


def stated_in(folder: Path, samples: int = SAMPLES) -> RunStatement:
    return state_run(folder / "run.yaml", folder / "log", samples)


def test_moved_data_have_the_same_root(made: Made, copied: Path) -> None:
    assert stated_in(copied).root == made.stated.root
    assert state_run(copied / "run.yaml", copied / "log/conceptloader_runs.jsonl", SAMPLES).root == made.stated.root


def edit_log(folder: Path, old: str, new: str) -> None:
    path = folder / "log/conceptloader_runs.jsonl"
    text = path.read_text()
    assert old in text
    path.write_text(text.replace(old, new))


def test_an_edited_run_log(made: Made, copied: Path) -> None:
    published = json.loads(json.dumps(made.stated.value))
    edit_log(copied, '"consumed":720', '"consumed":712')
    with raises(ConfigError, "run log", "step 90 at sample 712", "720"):
        stated_in(copied)
    edit_log(copied, '"consumed":712', '"consumed":720')
    edit_log(copied, '"batch":[[0,24]]', '"batch":[[0,48]]')
    stated = stated_in(copied)
    assert stated.root != made.stated.root
    with raises(ConfigError, "run.json", "starts: published", "what is published"):
        stated.check_published(published, "run.json")
    edit_log(copied, '"seed":7', '"seed":8')
    with raises(FormatError, "conceptloader_runs.jsonl"):
        stated_in(copied)


def test_a_log_without_its_beginning(copied: Path) -> None:
    path = copied / "log/conceptloader_runs.jsonl"
    lines = path.read_text().splitlines(keepends=True)
    lines.remove(next(line for line in lines if '"kind":"start"' in line))
    path.write_text("".join(lines))
    with raises(ConfigError, "run log", "samples before 400", "sample 0"):
        stated_in(copied)


def test_a_dataset_that_was_rebuilt(made: Made, copied: Path) -> None:
    build(copied, "web", 61, overwrite=True)
    assert stated_in(copied).root == made.stated.root, "the data that the log names are still there"
    log = copied / "log/conceptloader_runs.jsonl"
    lines = [json.loads(line) for line in log.read_text().splitlines()]
    for line in lines:  # as release 0.2.0 wrote it
        line.pop("config" if line["kind"] == "start" else "", None)
    log.write_text("".join(json.dumps(line) + "\n" for line in lines if line["kind"] != "config"))
    with raises(ResumeError, "datasets.web.stream_fingerprint", fix="restore"):
        stated_in(copied)


def test_the_same_tokens_with_other_boundaries(made: Made, copied: Path) -> None:
    """Resumable, as the order is the same, but other documents."""
    text = (copied / "code.jsonl").read_text().replace('"code-4"', '"code-four"')
    (copied / "code.jsonl").write_text(text)
    old = (copied / "data/code" / FILE).read_bytes()
    cl.build(copied / "code.jsonl", copied / "data/code", tokenizer="bytes", shard_input_bytes=6000, overwrite=True)
    with raises(ConfigError, "datasets.code", f"no {FILE}", fix="receipt --prepare"):
        stated_in(copied)
    (copied / "data/code" / FILE).write_bytes(old)
    with raises(ConfigError, "datasets.code", fix="receipt --prepare"):
        stated_in(copied)
    assert prepare(copied / "data/code")
    stated = stated_in(copied)
    with raises(ConfigError, "run.json", "members: published"):
        stated.check_published(json.loads(json.dumps(made.stated.value)), "run.json")


def test_files_that_are_not_those_of_the_hashes(copied: Path) -> None:
    file = copied / "data/web" / FILE
    edit(file, document_roots=["0" * 64, *json.loads(file.read_text())["document_roots"][1:]])
    with raises(FormatError, found="documents whose hash tree has the root", fix="conceptloader verify"):
        make_receipt(stated_in(copied), "web-1")


def test_documents_that_are_not_there_or_not_one(made: Made, copied: Path) -> None:
    with raises(ConfigError, "document", "'web-999'"):
        make_receipt(made.stated, "web-999")
    with raises(ConfigError, "data/web", "document 60"):
        make_receipt(made.stated, 60, "web")
    with raises(ConfigError, "dataset", "'nowhere'"):
        make_receipt(made.stated, "web-1", "nowhere")
    for name in ("code", "books"):
        build(copied, name, 80, overwrite=True)
        text = (copied / f"{name}.jsonl").read_text().replace(f"{name}-5", "twice")
        (copied / f"{name}.jsonl").write_text(text)
        cl.build(copied / f"{name}.jsonl", copied / "data" / name, tokenizer="bytes", overwrite=True)
        prepare(copied / "data" / name)
    shutil.rmtree(copied / "log")
    configure(copied, exclude=[])
    train(copied, None, ranks=1, size=2, steps=3)
    with raises(ConfigError, "document", "number 5 of code", "one", fix="--dataset"):
        make_receipt(stated_in(copied, 6), "twice")


def test_a_length_that_is_no_step(made: Made) -> None:
    for samples, expected in ((SAMPLES + 1, f"{SAMPLES} or {SAMPLES + 24}"), (725, "720 or 744"), (7, "0 or 8")):
        with raises(ConfigError, "--samples", samples, expected):
            stated_in(made.folder, samples)


def test_what_was_published_before_the_run_went_on(copied: Path, verifier: ModuleType) -> None:
    """Of an earlier length, with a configuration that was extended since."""
    shutil.rmtree(copied / "log")
    given: dict[str, Any] = {"datasets": {"web": {"path": "data/web"}}, "exclude": [], "skip": []}
    configure(copied, phases=[{"start": 0, "weights": {"web": 1}}], **given)
    state = train(copied, None, ranks=1, size=8, steps=50)
    root = stated_in(copied, 400).root
    given["datasets"]["code"] = {"path": "data/code"}
    configure(copied, phases=[{"start": 0, "weights": {"web": 1}}, {"start": 400, "weights": {"code": 1}}], **given)
    state = train(copied, state, ranks=1, size=8, steps=50)
    assert stated_in(copied, 800).root != root
    early = stated_in(copied, 400)
    assert early.root == root
    assert verifier.verify(receipt_of(early, "web-9"), root)
    assert verifier.verify(receipt_of(stated_in(copied, 800), "code-5"), stated_in(copied, 800).root)
    with raises(ConfigError, "document", "no 'code-5'"):
        make_receipt(early, "code-5")


@pytest.mark.parametrize(
    "edit",
    [
        {"seed": 8},
        {"exclude": [{"at": 700, "ids": ["web-7", "code-3"]}, {"at": 1500, "ids": ["web-8"]}]},
        {"exclude": [{"dataset": "web", "tokens": [0, 5]}]},
    ],
)
def test_a_configuration_that_was_edited_since(made: Made, copied: Path, edit: dict[str, Any]) -> None:
    configure(copied, **edit)
    assert stated_in(copied).root == made.stated.root
    (copied / "run.yaml").unlink()
    assert state_run(None, copied / "log", SAMPLES).root == made.stated.root


def test_what_was_masked_by_later_launches(copied: Path, verifier: ModuleType) -> None:
    """What a later launch excluded for good holds from there on; one that it took back cannot be said."""
    shutil.rmtree(copied / "log")
    bad = [{"dataset": "web", "tokens": list(cl.open_dataset(copied / "data/web").document_range(9))}]
    given: dict[str, Any] = {"datasets": {"web": {"path": "data/web"}}, "phases": [], "exclude": [], "skip": []}
    configure(copied, **given)
    early = train(copied, None, ranks=1, size=8, steps=50)
    configure(copied, **{**given, "exclude": bad})
    train(copied, early, ranks=1, size=8, steps=100)
    stated = stated_in(copied, 1200)
    seen = [one[1] for one in verifier.verify(receipt_of(stated, "web-9"), stated.root)]
    assert seen
    assert max(seen) < 400
    assert seen == [one.sample for one in locate_document(stated.run, "web-9", 1200)]
    configure(copied, **given)
    every = [one.sample for one in locate_document(open_run(copied / "run.yaml"), "web-9", 1200)]
    assert seen == [sample for sample in every if sample < 400] != every
    assert main(["trace", "--audit", "--run-log", str(copied / "log")]) == 0
    train(copied, early, ranks=1, size=8, steps=10, step=150)
    with raises(ConfigError, "run log"):
        stated_in(copied, 1200)
    shutil.rmtree(copied / "log")
    configure(copied, **{**given, "exclude": bad})
    early = train(copied, None, ranks=1, size=8, steps=50)
    configure(copied, **given)
    train(copied, early, ranks=1, size=8, steps=50)
    with raises(ConfigError, "receipt", "a run that from sample 400 on read tokens of web"):
        stated_in(copied, 800)
    configure(copied, **given, seed=9)
    shutil.rmtree(copied / "log")
    train(copied, None, ranks=1, size=8, steps=50)
    configure(copied, **given)
    loader = cl.batches(copied / "run.yaml", micro_batch_size=8)
    loader.load_state_dict(early, allow_changed=["seed"])
    loader.log_start(copied / "log", 50)
    loader.close()
    with raises(ConfigError, "receipt", "changed on purpose (seed: saved 9, now 7)"):
        stated_in(copied, 800)


def test_two_splits_of_one_dataset_are_one(copied: Path, verifier: ModuleType) -> None:
    """Also through a ramp from one to the other."""
    shutil.rmtree(copied / "log")
    halves = {"first": [0, 0.5], "second": [0.5, 1]}
    datasets = {name: {"path": "data/web", "split": share} for name, share in halves.items()}
    ramp = {"start": 60, "weights": {"first": 1, "second": 4}, "ramp": {"samples": 500}}
    phases = [{"start": 0, "weights": {"first": 3, "second": 1}}, ramp]
    configure(copied, datasets=datasets, phases=phases, exclude=[], skip=[])
    train(copied, None, ranks=1, size=2, steps=400)
    stated = stated_in(copied, 800)
    run, names = stated.run, set()
    for number in range(60):
        receipt = receipt_of(stated, f"web-{number}")
        both = [one for name in halves for one in locate_document(run, number, 800, name)]
        assert [one[1] for one in verifier.verify(receipt, stated.root)] == sorted(one.sample for one in both)
        names |= {one.dataset for one in both}
    assert names == set(halves)


def test_a_new_sequence_length(copied: Path, verifier: ModuleType) -> None:
    shutil.rmtree(copied / "log")
    given: dict[str, Any] = {"phases": [], "exclude": [], "skip": [], "on_seq_len_change": "restart"}
    configure(copied, **given)
    state = train(copied, None, ranks=1, size=2, steps=300)
    configure(copied, seq_len=24, **given)
    train(copied, state, ranks=1, size=2, steps=300)
    stated = stated_in(copied, 1200)
    assert len(stated.value["members"]) == 6
    names = set()
    for document in ("web-3", "web-4", *(f"code-{number}" for number in range(40)), "books-20"):
        expected = locate_document(stated.run, document, 1200)
        found = verifier.verify(receipt_of(stated, document), stated.root)
        assert [one[1] for one in found] == [one.sample for one in expected]
        names |= {one.dataset for one in expected}
    assert {name for name in names if name.startswith("code")} == {"code", "code@24"}


@pytest.mark.parametrize(
    ("config", "where", "found"),
    [
        ({"order": "sequential", **BARE}, "", "order sequential"),
        ({"packing": {"bins": 4, "overflow": "split"}, "exclude": []}, "", "packs"),
        ({"exclude": [{"at": 2, "ids": ["web-7"], "take": "own"}]}, "", "take: own"),
        ({"datasets": {"long": {"path": "data/long"}}, **BARE}, "datasets.long", "a subset"),
    ],
)
def test_runs_of_other_kinds(copied: Path, config: dict[str, Any], where: str, found: str) -> None:
    shutil.rmtree(copied / "log")
    assert main(["subset", str(copied / "data/web"), "--where", "tokens > 50", "--out", str(copied / "data/long")]) == 0
    configure(copied, **config)
    train(copied, None, ranks=1, size=2, steps=3)
    with raises(ConfigError, where, found):
        stated_in(copied, 6)


def test_weights_that_were_set(copied: Path) -> None:
    shutil.rmtree(copied / "log")
    configure(copied, **BARE)
    with cl.batches(copied / "run.yaml", micro_batch_size=2) as loader:
        loader.log_start(copied / "log", 0)
        next(iter(loader))
        loader.set_weights({"web": 1, "code": 2, "books": 3}, at=40)
    with raises(ConfigError, "receipt", "weights that were set"):
        stated_in(copied, 100)


def test_the_command(made: Made, tmp_path: Path, capsys: pytest.CaptureFixture[str], verifier: ModuleType) -> None:
    command = ["receipt", str(made.config), "--run-log", str(made.folder / "log"), "--samples", str(SAMPLES)]
    published, out = str(tmp_path / "run.json"), tmp_path / "web-9.json"
    assert main([*command, "--out", published]) == 0
    assert made.stated.root in capsys.readouterr().out
    assert main([*command, "--published", published, "--document", "web-9", "--out", str(out)]) == 0
    assert verifier.main(str(out), made.stated.root) == 0
    assert main([*command, "--document-number", "9", "--dataset", "web"]) == 0
    assert json.loads(capsys.readouterr().out.splitlines()[-1]) == json.loads(out.read_text())
    assert main([*command[:-1], str(SAMPLES + 24), "--published", published]) == 2
    assert "samples: published 4080, now 4104" in capsys.readouterr().err
    (tmp_path / "run.json").write_text("[]")
    assert main([*command, "--published", published]) == 2
