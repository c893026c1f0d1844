"""Damage under the compiled reader: it gives, or refuses, what the plain one does, and never leaves its buffers."""

import os
import signal
import subprocess
import sys
import zlib
from collections import Counter
from typing import Any

import numpy as np
import pytest

import conceptloader as cl
from conceptloader.batch.open import batch_layout
from conceptloader.batch.reader import BatchReader
from conceptloader.errors import ConceptloaderError
from conceptloader.kernels.library import VARIABLE
from conceptloader.storage import reads as io
from conceptloader.testing import PlainReader
from tests.conftest import Tally
from tests.corpora.variants import SEQ_LEN, Variant
from tests.corruption import guarded
from tests.corruption.mutations import write
from tests.corruption.test_datasets import Damage, Subject, consistent, manifest, raw
from tests.scale import scaled
from tests.soak.builds import child

VARIANTS = [
    Variant("stream-with-metadata", "dense"),
    Variant("stream-with-metadata", "spans"),
    Variant("document", "dense"),
    Variant("document", "spans"),
    Variant("token-stream", "none", "none"),
    Variant("adopted", "none", "none"),
]


@pytest.fixture(scope="module", params=VARIANTS, ids=str)
def subject(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Subject:
    return Subject(tmp_path_factory.mktemp("damaged") / "ds", request.param)


@pytest.fixture(autouse=True)
def pages(monkeypatch: pytest.MonkeyPatch) -> None:
    guarded.install(monkeypatch)
    monkeypatch.setattr(io, "sleep", lambda seconds: None)


def read(subject: Subject, layout: str) -> tuple[Any, Any]:
    """(batch or error) of both readers."""
    config: dict[str, Any] = {
        "seq_len": SEQ_LEN,
        "datasets": {"a": {"path": str(subject.path)}},
        "loader": {"verify_files": False},  # as damage that no sample meets
        "outputs": {"position_ids": "document", "document_ids": True, "cu_seqlens": True, "loss_on_eos": False},
    }
    if subject.variant.mode == "adopted":
        config["outputs"]["loss_on_eos"] = True
    if subject.variant.codec == "concepts":
        config["tracks"] = {"notes": {"layout": layout}}
    blend = cl.open_blend(cl.load_config(config))
    made = batch_layout(blend)
    plain = PlainReader(blend.order, blend.views, made)
    compiled = BatchReader(blend.order, blend.views, made)
    guarded.guard_tables(compiled)
    samples = np.arange(min(64, blend.order.sizes[0]), dtype=np.uint64)
    try:
        return tuple(_outcome(reader, samples) for reader in (plain, compiled))  # type: ignore[return-value]
    finally:
        for ds in blend.datasets.values():
            ds.close()


def _outcome(reader: Any, samples: Any) -> Any:
    try:
        return reader.read(samples, guarded.allocate)
    except ConceptloaderError as error:
        return error


def compare(subject: Subject, layout: str) -> str:
    try:
        plain, compiled = read(subject, layout)
    except ConceptloaderError:
        return "refused"
    if isinstance(plain, ConceptloaderError) or isinstance(compiled, ConceptloaderError):
        assert isinstance(plain, ConceptloaderError), f"only the engine refuses: {compiled}"
        assert isinstance(compiled, ConceptloaderError), f"only the plain reader refuses: {plain}"
        return "error"
    assert sorted(plain) == sorted(compiled)
    for name, array in plain.items():
        assert np.array_equal(array, compiled[name]), name
    return "equal"


@pytest.mark.soak
@pytest.mark.parametrize("damage", [raw, consistent, manifest], ids=lambda damage: damage.__name__)
def test_damage_under_the_engine(subject: Subject, damage: Damage, tally: Tally) -> None:
    rng = np.random.default_rng(zlib.crc32(f"engine {subject.variant} {damage.__name__}".encode()))
    assert compare(subject, "padded") == "equal"
    outcomes: Counter[str] = Counter()
    for number in range(scaled(10, 250)):
        what, changed = damage(subject.files, rng)
        write(subject.path, changed)
        try:
            outcomes[compare(subject, ("padded", "ragged")[number % 2])] += 1
        except Exception as error:
            raise AssertionError(f"{what}: {type(error).__name__}: {error}") from error
        finally:
            subject.repair(changed)
    tally(f"damage under the engine, {damage.__name__}", {"mutations": sum(outcomes.values()), **outcomes})


def test_a_byte_too_far_ends_the_process() -> None:
    """The guard pages guard."""
    array = guarded.guarded(10, np.int64)
    array[9] = 1
    address = array.__array_interface__["data"][0] + 80
    process = os.fork()
    if not process:
        signal.signal(signal.SIGSEGV, signal.SIG_DFL)
        guarded.ctypes.string_at(address, 1)
        os._exit(0)
    _, status = os.waitpid(process, 0)
    assert os.WIFSIGNALED(status)
    assert os.WTERMSIG(status) == signal.SIGSEGV
    assert child(lambda: None)


@pytest.mark.soak
@pytest.mark.skipif(VARIABLE in os.environ, reason="this is the inner run")
def test_with_bounds_checks(bounds_checks: dict[str, str], tally: Tally) -> None:
    environment = {**bounds_checks, "CONCEPTLOADER_SOAK": ""}
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "--timeout", "3000", __file__]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout[-3000:]
    tally("damage under the engine with bounds checks", {"runs": 1})
