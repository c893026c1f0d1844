"""The student of docs/distillation.md on a Megatron-LM checkout (MEGATRON_SRC): its values are those of its labels."""

from itertools import islice

import numpy as np
import pytest

import conceptloader as cl
from conceptloader.config import load_config
from tests.corpora.columns import add_column
from tests.corpora.for_megatron import write_config, write_datasets
from tests.megatron.launching import ROOT
from tests.megatron.pretraining import STEPS, Layout, each_checkout, ended, needs_checkout, pretrain

pytestmark = needs_checkout
TOP = 4


@pytest.fixture(scope="module")
def config(tmp_path_factory):
    folder = write_datasets(tmp_path_factory.mktemp("data"))
    for number, name in enumerate(("code", "web")):
        places = np.arange(cl.open_dataset(folder / name).num_tokens)[:, None]
        ids = (places * 31 + np.arange(TOP) * 7 + number * 11) % 255
        add_column(folder / name, "teacher_ids", ids.astype("u2"))
        add_column(folder / name, "teacher_logprobs", (-2.0 - (places % 5 + np.arange(TOP)) / 4).astype("f2"))
    columns = dict.fromkeys(("teacher_ids", "teacher_logprobs"), "labels")
    return write_config(folder / "data.yaml", tracks={}, outputs={"columns": columns})


@each_checkout
@pytest.mark.parametrize("parallel", ["tensor", "pipeline", "context"])
def test_a_student(checkout, parallel, config, tmp_path, monkeypatch):
    """Every layout reads the same values as plain PyTorch, and begins with the same loss as one process."""
    monkeypatch.setenv("DISTILLATION", str(ROOT / "docs/distillation.md"))
    layout = Layout((f"--{parallel}-{'' if parallel == 'context' else 'model-'}parallel-size", "2"))
    script = ROOT / "tests/megatron/distill_pretrain.py"
    run = ended(pretrain(checkout, tmp_path / "run", layout, config=config, script=script))
    plain = iter(cl.make_dataloader(load_config(config).with_seq_len(64), micro_batch_size=layout.micro_batch))
    expected = list(islice(plain, STEPS * layout.micro_batches))
    for line, batch in zip(run.taken[0], expected, strict=True):
        for name in ("teacher_ids", "teacher_logprobs"):
            assert line[name] == batch[name].flatten().tolist(), name
    assert len(run.losses) == STEPS
    for found in zip(run.given[0], run.given[1], expected, strict=True):
        parts, whole = [line["teacher_ids"] for line in found[:2]], int(found[2]["teacher_ids"].sum())
        assert sum(parts) == whole if parallel == "context" else parts == [whole] * 2
