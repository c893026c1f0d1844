"""Parse nanotron configs with the adapter installed, save them with nanotron and parse them again; see test_yaml.py."""

import json
import sys
from pathlib import Path

import yaml
from nanotron.config import Config, get_config_from_dict, get_config_from_file

from conceptloader.errors import ConfigError
from conceptloader.integrations import nanotron_lm

nanotron_lm.install()
found = {}
for name, data in json.loads(Path(sys.argv[1]).read_text()).items():
    try:
        config = get_config_from_dict(data, config_class=Config)
    except ConfigError as error:
        found[name] = {"error": str(error)}
        continue
    config.save_as_yaml("saved.yaml")
    saved = yaml.safe_load(Path("saved.yaml").read_text())
    get_config_from_file("saved.yaml", config_class=Config).save_as_yaml("again.yaml")
    again = yaml.safe_load(Path("again.yaml").read_text())
    dataset = [section["data_stages"][0]["data"]["dataset"] for section in (saved, again)]
    kind = type(config.data_stages[0].data.dataset).__name__
    found[name] = {"class": kind, "saved": dataset[0], "again": dataset[1]}
Path("found.json").write_text(json.dumps(found))
