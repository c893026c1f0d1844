"""`dataset: {type: conceptloader, ...}` in nanotron's YAML, with the `nanotron:` section that only this adapter needs.

nanotron parses a dataset with dacite, which tries each of its own types and hides every error of theirs. So we take our
sections out of the raw YAML first, check them with messages of our own, and put finished objects in their place. These
derive from NanosetDatasetsArgs, the one type for which run_train.py asks functions of a module for dataset and loader.
"""

import dataclasses
import functools
import logging
import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from importlib import import_module
from pathlib import Path
from typing import Any

from conceptloader.base.strict import Section, build, unknown
from conceptloader.config import Config, load_config
from conceptloader.errors import ConfigError

logger = logging.getLogger(__name__)

TYPE = "conceptloader"
NO_TOKENIZER = "conceptloader/none"
KEYS = tuple(f.name for f in dataclasses.fields(Config))
STOCK_KEYS = ("input_ids", "input_mask", "label_ids", "label_mask")


@dataclass(frozen=True, kw_only=True)
class NanotronOptions(Section):
    """The section `nanotron` of the YAML, next to the configuration.

    Attributes:
        model_inputs: Batch keys that the model takes beyond nanotron's own four, with the pipeline stage that uses
            each: "first" (where the embedding is), "last" (where the loss is) or a pipeline rank. There the key holds a
            tensor, elsewhere a TensorPointer. Stock models reject extra keys, so none are sent by default.
        allow_changed: What may differ from the past of the checkpoint when resuming, named as the error names it.

    Raises:
        ConfigError: Names the key.
    """

    model_inputs: dict[str, str] = field(default_factory=dict)
    allow_changed: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        super().__post_init__()
        for key, stage in self.model_inputs.items():
            if key in STOCK_KEYS:
                raise ConfigError(
                    f"model_inputs.{key}",
                    "a key that every model of nanotron gets",
                    "other inputs of the model",
                    f"omit model_inputs.{key}",
                )
            if stage not in ("first", "last") and not stage.isdecimal():
                raise ConfigError(
                    f"model_inputs.{key}",
                    repr(stage),
                    "first, last or a pipeline rank",
                    f"set model_inputs.{key}: first, last or a pipeline rank",
                )

    @classmethod
    def parse(cls, section: Any, where: str) -> "NanotronOptions":
        """Options from the YAML section, None for the defaults; `where` is its path in messages."""
        if isinstance(section, Mapping) and isinstance(section.get("model_inputs"), Mapping):
            stages = {key: str(v) if type(v) is int else v for key, v in section["model_inputs"].items()}
            section = {**section, "model_inputs": stages}
        try:
            return build(cls, {} if section is None else section, "")
        except ConfigError as error:
            raise error.within(where, ".") from error


@functools.cache
def args_class() -> type:
    """The dataclass nanotron holds. Its fields are the keys that the YAML may have, so that it saves as it was read."""
    from nanotron.config import NanosetDatasetsArgs

    keys = [("type", str, TYPE), *((key, Any, None) for key in ("config", "nanotron", *KEYS))]
    section = dataclasses.make_dataclass("Section", keys)
    # Fields, __init__ and __repr__ come from the first base; the second makes run_train.py take us for a Nanoset.
    namespace = {"settings": settings, "options": options, "dataset_folder": ()}
    return type("ConceptloaderDatasetsArgs", (section, NanosetDatasetsArgs), namespace)


def is_ours(dataset: Any) -> bool:
    """Whether a dataset section of a parsed nanotron config is ours."""
    return isinstance(dataset, args_class())


def settings(self: Any, seed: int | None = None) -> Config:
    """Our configuration; nanotron's seed holds where it gives none.

    Raises ConfigError for anything wrong in it, ReadError if the file that `config` names cannot be read.
    """
    inline = {key: getattr(self, key) for key in KEYS if getattr(self, key) is not None}
    given = inline if self.config is None else self.config
    return load_config(given, defaults=None if seed is None else {"seed": seed})


def options(self: Any, where: str = "dataset.nanotron") -> NanotronOptions:
    return NanotronOptions.parse(self.nanotron, where)


def replace_in(data: Any, nanosets: bool = False) -> Any:
    """A nanotron config as plain data, with conceptloader's objects for the data stages of its type.

    The input is not changed.

    nanosets: if there is none, take those with a `dataset_folder` for ours.

    Raises ConfigError, with the path in nanotron's YAML, for anything wrong in such a stage.
    """
    if not isinstance(data, Mapping) or not isinstance(data.get("data_stages"), list):
        return data
    stages = list(data["data_stages"])
    sections = [stage.get("data") if isinstance(stage, Mapping) else None for stage in stages]
    datasets = [section.get("dataset") if isinstance(section, Mapping) else None for section in sections]
    nanosets = nanosets and not any(isinstance(dataset, Mapping) and "type" in dataset for dataset in datasets)
    for k, (stage, section, dataset) in enumerate(zip(stages, sections, datasets, strict=True)):
        if nanosets and isinstance(dataset, Mapping) and "dataset_folder" in dataset:
            if os.environ.get("RANK", "0") == "0":  # nanotron's log shows nothing below a warning yet
                logger.warning("data_stages[%d]: its dataset_folder is read by conceptloader, in its own order", k)
            dataset = {"type": TYPE, **dataset}
        if isinstance(dataset, Mapping) and "type" not in dataset and {"datasets", "config"} & dataset.keys():
            raise ConfigError(
                f"data_stages[{k}].data.dataset",
                f"{', '.join(map(str, dataset))} and no type, which no dataset of nanotron has",
                f"a dataset of nanotron, or type: {TYPE}",
                f"add type: {TYPE} for conceptloader's",
            )
        if section is not None and isinstance(dataset, Mapping) and "type" in dataset:
            found = _parse(dataset, data, f"data_stages[{k}].data.dataset")
            stages[k] = {**stage, "data": {**section, "dataset": found}}
    return {**data, "data_stages": stages}


def _parse(dataset: Mapping[str, Any], root: Mapping[str, Any], where: str) -> Any:
    if dataset["type"] != TYPE:
        raise ConfigError(
            f"{where}.type", repr(dataset["type"]), TYPE, f"omit {where}.type for nanotron's own datasets"
        )
    cls = args_class()
    known = [f.name for f in dataclasses.fields(cls)]
    if "dataset_folder" in dataset:
        dataset = _from_nanoset(dataset, root, where)
    for key in dataset:
        if key not in known:
            raise unknown(f"{where}.{key}", key, known, fix=Config.ELSEWHERE.get(key, ""))
    values = {key: value for key, value in dataset.items() if value is not None}
    inline = sorted(set(values) - {"type", "config", "nanotron"})
    if "config" in values and inline:
        raise ConfigError(
            where,
            f"config and {', '.join(inline)}",
            "one place for the options",
            "omit config, or the other keys",
        )
    args = cls(**values)
    model_inputs = args.options(f"{where}.nanotron").model_inputs
    try:
        settings = args.settings()
        settings.outputs.check_weights(model_inputs, "nanotron.model_inputs")
        args.dataset_folder = settings.names  # run_train.py logs how many there are
    except ConfigError as error:
        raise (error.within(where, ".") if inline else error.within(f"{where}.config")) from error
    # What Config.__post_init__ (config/config.py) compares with the model and the tokenizer: we agree with both.
    args.vocab_size = ((root.get("model") or {}).get("model_config") or {}).get("vocab_size")
    args.tokenizer_name = (root.get("tokenizer") or {}).get("tokenizer_name_or_path") or NO_TOKENIZER
    return args


def _from_nanoset(section: Mapping[str, Any], root: Mapping[str, Any], where: str) -> dict[str, Any]:
    """The section with `datasets` in place of the folders, adopted where they are; conceptloader's keys stay.

    The tables of documents go into the folder of the checkpoints. Documents are distinguished where nanotron would do
    so.
    """
    if section.get("dataset_max_tokens") is not None:
        raise ConfigError(
            f"{where}.dataset_max_tokens",
            "it with conceptloader's data, which read all of dataset_folder",
            "no dataset_max_tokens",
            f"omit {where}.dataset_max_tokens",
        )
    from nanotron.config import NanosetDatasetsArgs

    theirs = {f.name for f in dataclasses.fields(NanosetDatasetsArgs)}
    folders, weights = section["dataset_folder"], section.get("dataset_weights")
    folders = [folders] if isinstance(folders, str) else list(folders)
    weights = [1] * len(folders) if weights is None or len(folders) == 1 else list(weights)
    read = section.get("dataset_read_path") or folders
    read = [read] if isinstance(read, str) else list(read)
    for key, given, one in (("dataset_weights", weights, "weight"), ("dataset_read_path", read, "folder")):
        if len(given) != len(folders):
            raise ConfigError(
                f"{where}.{key}",
                len(given),
                f"a {one} for each of {len(folders)} folders",
                f"set {where}.{key} to {len(folders)} {one}s",
            )
    for folder, copy in zip(folders, read, strict=True):
        if missing := sorted(_token_files(folder) - _token_files(copy)):
            raise ConfigError(
                f"{where}.dataset_read_path",
                f"{copy} without {missing[0]}, one of {len(missing)} files of {folder}",
                "a copy of all files: the order is one of all windows",
                f"copy the files of {folder} to {copy}",
            )
    saved = (root.get("checkpoints") or {}).get("checkpoints_path")
    masked = ((root.get("model") or {}).get("model_config") or {}).get("_use_doc_masking")
    outputs = {"position_ids": "document", "mask_document_boundaries": True}
    cache = saved and os.path.join(saved, f".{TYPE}")  # s3_upload.remove_after_upload removes folders without a dot
    adopt = import_module("conceptloader.ingest.adopt.in_place")
    try:
        datasets = adopt.datasets_in_place((read, weights), cache, folders)
    except ConfigError as error:
        raise error.within(f"{where}.{'dataset_folder' if read == folders else 'dataset_read_path'}") from error
    return {
        **({"outputs": outputs} if masked and section.get("return_positions", True) else {}),
        **{key: value for key, value in section.items() if key not in theirs},
        **datasets,
    }


def _token_files(folder: str) -> set[str]:
    """Names in a folder; none of a URL, whose files are known where they are read."""
    return {str(file.relative_to(folder)) for file in Path(folder).rglob("*.ds")}


def no_tokenizer() -> Any:
    """For a name that is ours, and that no hub is asked for. Raises: ConfigError."""
    raise ConfigError(
        "tokenizer.tokenizer_name_or_path",
        f"{NO_TOKENIZER}, which stands for none",
        "the tokenizer of the datasets",
        "set tokenizer.tokenizer_name_or_path, to encode or decode text",
    )


class StandIn:
    """A tokenizer that need not exist: run_train.py loads one only to compare its length with the model's vocabulary.

    Its length is the model's vocabulary as it is now, also where tensor parallelism padded that. For anything else
    (decoding, say) the real one is loaded.
    """

    pad_token: str | None = None
    eos_token: str | None = None
    eos_token_id: int | None = None
    padding_side: str = "left"

    def __init__(self, config: Any, load: Callable[[], Any]) -> None:
        self._config, self._load = config, load

    def __len__(self) -> int:
        return int(self._config.model.model_config.vocab_size)

    def __getattr__(self, name: str) -> Any:
        if name.startswith("_"):
            raise AttributeError(name)
        return getattr(self._load(), name)
