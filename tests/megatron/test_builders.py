"""Scripts with several builders, as for validation data of their own: each gets the data that it asks for."""

import itertools

import pytest

from conceptloader.errors import ConfigError
from conceptloader.integrations.megatron_lm.launch import Run
from conceptloader.integrations.megatron_lm.options import take_options
from conceptloader.order.progress.state import OrderState
from tests.corpora.for_megatron import EOD, write_config, write_datasets
from tests.corpora.token_files import write_corpus
from tests.megatron.stock import arguments, builder, dataset_config
from tests.raises import raises

pytestmark = pytest.mark.usefixtures("one_process")
LENGTH = 16


@pytest.fixture
def start(set_args):
    """A run of a command line, with Megatron's arguments."""
    return lambda *words: (Run(take_options(words)[0]), set_args(arguments(split="80,20,0")))


def build(run, sizes, **options):
    """What a BlendedMegatronDatasetBuilder of its own, with a configuration of its own, gives a script."""
    return run.build(lambda _: None, builder(dataset_config(LENGTH, **options), sizes))


@pytest.fixture
def blends(tmp_path):
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


def tokens(dataset):
    return {int(token) for k in range(len(dataset))[:64] for token in dataset[k]["tokens"]} - {EOD}


@pytest.mark.parametrize(
    ("first", "asked", "other"),
    [
        *itertools.product(["train", "valid"], [0], ["code", "code alone", "masked", "web"]),
        *itertools.product(["train"], [64], ["code", "masked", "web"]),
    ],
)
def test_validation_by_a_builder_of_its_own(start, blends, other, first, asked):
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


def test_a_second_builder_with_tensors_of_other_shapes_is_refused(start, tmp_path):
    run, _ = start("--conceptloader-config", str(write_config(write_datasets(tmp_path / "data") / "data.yaml")))
    assert build(run, [64, 0, 0])
    with raises(ConfigError, "BlendedMegatronDatasetBuilder", "tensors of other shapes", fix="one builder"):
        run.build(lambda _: None, builder(dataset_config(2 * LENGTH), [0, 8, 0]))
