"""Scripts with several builders, as for validation data of their own: each gets the data that it asks for."""

import itertools
import sys
from argparse import Namespace
from collections.abc import Callable
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest
from megatron.core.datasets.gpt_dataset import GPTDataset

from conceptloader.errors import ConfigError
from conceptloader.integrations.megatron_lm.launch import Run
from conceptloader.integrations.megatron_lm.options import take_options
from conceptloader.order.progress.state import OrderState
from tests.corpora.for_megatron import EOD, write_config, write_datasets
from tests.corpora.token_files import write_corpus
from tests.megatron.stock import Tokenizer, dataset_config
from tests.raises import raises

pytestmark = pytest.mark.usefixtures("one_process")
LENGTH = 16
Start = Callable[..., tuple[Run, Namespace]]


@pytest.fixture
def start(monkeypatch: pytest.MonkeyPatch) -> Start:
    """A run of a command line, with Megatron's arguments."""
    monkeypatch.setattr(Tokenizer, "eod", EOD)
    args = Namespace(
        global_batch_size=8, micro_batch_size=2, rampup_batch_size=None, seq_length=LENGTH,
        decrease_batch_size_if_needed=False, phase_transition_iterations=None, iteration=0, consumed_train_samples=0,
        train_iters=8, rank=0, num_workers=0, dataloader_type="single", save=None, load=None, split="80,20,0",
        transformer_impl="local", masked_softmax_fusion=False, fp16=False, bf16=False,
    )  # fmt: skip
    given = ModuleType("megatron.training")
    given.get_args = lambda: args  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "megatron.training", given)

    def start(*words: str) -> tuple[Run, Namespace]:
        options, _ = take_options(words)
        assert options is not None
        return Run(options), args

    return start


def build(run: Run, sizes: list[int | None], **options: Any) -> list[Any]:
    """What a BlendedMegatronDatasetBuilder of its own, with a configuration of its own, gives a script."""
    config = dataset_config(LENGTH, **options)
    return run.build(
        lambda _: None,
        SimpleNamespace(cls=GPTDataset, config=config, sizes=sizes, is_built_on_rank=lambda: True),
    )


@pytest.fixture
def blends(tmp_path: Path) -> dict[str, dict[str, Any]]:
    """Arguments of configurations: web has tokens below 40, code above."""
    web, code = (
        write_corpus(tmp_path / name, [[*range(k + d % 9, k + 30), EOD] for d in range(90)])
        for name, k in (("web", 1), ("code", 50))
    )
    split = {"split": "80,20,0"}
    return {
        "web": {"blend": ([web], None), **split},
        "code": {"blend": ([code], None), **split},
        "code alone": {"blend_per_split": [None, ([code], None), None]},
        "masked": {"blend": ([web], None), "eod_mask_loss": True, **split},
    }


def tokens(dataset: Any) -> set[int]:
    return {int(token) for k in range(len(dataset))[:64] for token in dataset[k]["tokens"]} - {EOD}


@pytest.mark.parametrize(
    ("first", "asked", "other"),
    [
        *itertools.product(["train", "valid"], [0], ["code", "code alone", "masked", "web"]),
        *itertools.product(["train"], [64], ["code", "masked", "web"]),
    ],
)
def test_validation_by_a_builder_of_its_own(
    start: Start, blends: dict[str, dict[str, Any]], other: str, first: str, asked: int
) -> None:
    """Whichever comes first, and also if it is asked for training data, which nobody reads.

    The state that is saved is that of the training.
    """
    run, args = start("--data-path", "x")
    built = {}
    for what in dict.fromkeys((first, "train", "valid")):
        if what == "train":
            built[what] = build(run, [64, 0, 0], **blends["web"])[0]
        else:
            unread, built[what], _ = build(run, [asked, 8, 0], **blends[other])
    assert max(tokens(built["train"])) < 40
    found = tokens(built["valid"])
    assert (min(found) > 40) if other.startswith("code") else (max(found) < 40)
    assert any(0 in built["valid"][k]["loss_mask"] for k in range(8)) == (other == "masked")
    run.save(lambda args: None, args)
    assert [*OrderState.read(args.conceptloader, "state").spec.members] == ["web"]
    assert run.iterator(None, iter([]))
    if asked:
        with raises(ConfigError, "training data", "of a second builder", fix="the size 0 for training"):
            unread[0]
    else:
        assert unread is None


def test_a_second_builder_with_tensors_of_other_shapes_is_refused(start: Start, tmp_path: Path) -> None:
    run, _ = start("--conceptloader-config", str(write_config(write_datasets(tmp_path / "data") / "data.yaml")))
    assert build(run, [64, 0, 0])
    builder = SimpleNamespace(
        cls=GPTDataset, config=dataset_config(2 * LENGTH), sizes=[0, 8, 0], is_built_on_rank=lambda: True
    )
    with raises(ConfigError, "BlendedMegatronDatasetBuilder", "tensors of other shapes", fix="one builder"):
        run.build(lambda _: None, builder)
