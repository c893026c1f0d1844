"""What a front end does not carry out raises at launch, by the configuration alone."""

import logging
from dataclasses import replace

import pytest

import conceptloader as cl
from conceptloader.config import load_config
from conceptloader.errors import ConfigError
from conceptloader.loader.batch.loader import LOADER
from conceptloader.loader.torch.trained import TrainedLoader
from conceptloader.run.entry import ANY, Entry
from tests.raises import raises

NOTHING = Entry(name="a front end that reads samples")


def test_a_controller_that_learns_needs_losses(config):
    class Unheard(cl.NumpyLoader):
        entry = replace(LOADER, carries=LOADER.carries - {"losses"})

    Unheard({**config, "mixing": {"file": "weights.yaml"}}, micro_batch_size=2)
    with raises(ConfigError, "mixing.odm", "no losses"):
        Unheard({**config, "mixing": {"odm": {}}}, micro_batch_size=2)


def test_keys_about_speed_are_only_said(config, caplog):
    asked = load_config({**config, "loader": {"num_threads": 3, "pin_memory": True, "verify_files": False}})
    with caplog.at_level(logging.WARNING):
        ANY.check(asked)
        assert not caplog.records
        NOTHING.check(asked)
    assert [record.args[0] for record in caplog.records if record.args] == ["num_threads", "pin_memory"]


def test_names_that_an_entry_gives_itself(data):
    """A field of that name was replaced silently."""
    asked = load_config(
        {"seq_len": 8, "datasets": {"a": {"path": str(data / "web")}}, "outputs": {"fields": {"positions": "inputs"}}}
    )
    ANY.check(asked)
    with raises(ConfigError, "outputs.fields.positions", "an array of its own"):
        replace(NOTHING, keys=frozenset({"positions"})).check(asked)
    field = replace(asked, outputs=replace(asked.outputs, fields={"consumed_samples": "inputs"}))
    with raises(ConfigError, "outputs.fields.consumed_samples", "TrainedLoader"):
        TrainedLoader(field, micro_batch_size=2)


@pytest.mark.parametrize(
    ("given", "path", "near"),
    [
        ({"carries": frozenset({"loses"})}, "Entry mine: carries", "losses"),
        ({"lacks": {"cu_seqlen": "it makes them"}}, "Entry mine: lacks", "cu_seqlens"),
    ],
)
def test_an_entry_of_words_that_nobody_knows(given, path, near):
    with raises(ConfigError, path, fix=near):
        Entry(name="mine", **given)


def test_what_a_front_end_lacks_raises_where_somebody_asked_for_it(config):
    entry = Entry(name="mine", lacks={"position_ids": "it makes them"})
    entry.check(load_config(config))
    with raises(ConfigError, "outputs.position_ids", "mine"):
        entry.check(load_config({**config, "outputs": {"position_ids": "document"}}))
