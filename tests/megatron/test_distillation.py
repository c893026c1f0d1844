"""The student of docs/distillation.md on a Megatron-LM checkout (MEGATRON_SRC): its values are those of its labels."""

import pytest

from tests.corpora.columns import COLUMNS, add_teacher
from tests.corpora.for_megatron import write_config, write_datasets
from tests.megatron.launching import ROOT
from tests.megatron.pretraining import STEPS, needs_checkout
from tests.megatron.test_own_script import PARALLEL, each_way, has_its_part, in_plain_pytorch

pytestmark = needs_checkout


@pytest.fixture(scope="module")
def config(tmp_path_factory):
    folder = write_datasets(tmp_path_factory.mktemp("data"))
    for number, name in enumerate(("code", "web")):
        add_teacher(folder / name, number, 255)
    return write_config(folder / "data.yaml", tracks={}, outputs={"columns": dict.fromkeys(COLUMNS, "labels")})


@each_way
def test_a_student(pretrain, parallel, config, monkeypatch):
    """Every layout reads the same values as plain PyTorch, and begins with the same loss as one process."""
    monkeypatch.setenv("DISTILLATION", str(ROOT / "docs/distillation.md"))
    run = pretrain("run", PARALLEL[parallel], config=config, script=ROOT / "tests/megatron/distill_pretrain.py")
    expected = in_plain_pytorch(config, PARALLEL[parallel])
    for line, batch in zip(run.taken[0], expected, strict=True):
        for name in COLUMNS:
            assert line[name] == batch[name].flatten().tolist(), name
    assert len(run.losses) == STEPS
    has_its_part(parallel, run, "teacher_ids", [int(batch["teacher_ids"].sum()) for batch in expected])
