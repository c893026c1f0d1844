"""Every place where nanotron is changed, each with the line that it stands for. Nothing else in this adapter patches.

Written against nanotron main, commit 2411b022 (April 2026).
"""

import functools
import inspect
import sys
from collections import deque
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from importlib import import_module
from typing import Any

from conceptloader.errors import ConfigError

from . import dataset_args, losses, run, tokenizer

KNOWN_GOOD = "nanotron main at commit 2411b022"


@dataclass(frozen=True, kw_only=True)
class Patch:
    """module, name: the attribute that is replaced. line: the upstream line that reads it.

    parameters: arguments that the original must take. make: from the original to its replacement.
    """

    module: str
    name: str
    line: str
    parameters: tuple[str, ...]
    make: Callable[[Callable[..., Any]], Callable[..., Any]]

    def resolve(self) -> tuple[Any, Callable[..., Any]]:
        """The owner of the attribute and its value. Raises ConfigError if nanotron is not what this was written for."""
        where = f"{self.module}.{self.name}".replace(":", ".")
        instead = f"({self.line} of {KNOWN_GOOD}); use that version, or build_dataloader() in a script of your own"
        module, _, cls = self.module.partition(":")
        try:
            owner: Any = getattr(import_module(module), cls) if cls else import_module(module)
            original = getattr(owner, self.name)
        except (ImportError, AttributeError) as error:
            raise ConfigError(f"cannot hook into nanotron at {where}: {error} {instead}") from error
        if self.parameters:
            found = inspect.signature(original).parameters
            absent = [name for name in self.parameters if name not in found]
            if absent:
                raise ConfigError(
                    f"cannot hook into nanotron at {where}: it takes {', '.join(found)}, expected {', '.join(absent)} "
                    f"too {instead}"
                )
        return owner, original

    def apply(self) -> None:
        """Replace the attribute, once per process."""
        owner, original = self.resolve()
        if not hasattr(original, "conceptloader_original"):
            replacement = functools.wraps(original)(self.make(original))
            replacement.conceptloader_original = original  # type: ignore[attr-defined]
            setattr(owner, self.name, staticmethod(replacement) if isinstance(owner, type) else replacement)


def _dataset_type(original: Callable[..., Any]) -> Callable[..., Any]:
    def from_dict(data_class: Any, data: Any, config: Any = None) -> Any:
        return original(data_class=data_class, data=dataset_args.replace_in(data), config=config)

    return from_dict


def _trainer_start(original: Callable[..., Any]) -> Callable[..., Any]:
    def parse_ckpt_path(config: Any, parallel_context: Any) -> Any:
        path = original(config=config, parallel_context=parallel_context)
        run.start(config, path)
        return path

    return parse_ckpt_path


def _tokenizer(original: Callable[..., Any]) -> Callable[..., Any]:
    def from_pretrained(name: Any, *args: Any, **kwargs: Any) -> Any:
        active = run.active()
        if active is not None and not args and not kwargs and active.loads_tokenizer(name):
            return tokenizer.StandIn(active.config, functools.partial(original, name))
        return original(name, *args, **kwargs)

    return from_pretrained


def _datasets(original: Callable[..., Any]) -> Callable[..., Any]:
    def get_tb_datasets(*, config: Any, **kwargs: Any) -> Any:
        if not dataset_args.is_ours(config):
            return original(config=config, **kwargs)
        from . import stage

        return stage.open_stage(run.require(), config, **kwargs)

    return get_tb_datasets


def _dataloader(original: Callable[..., Any]) -> Callable[..., Any]:
    def get_tb_dataloader(*, dataset: Any, **kwargs: Any) -> Any:
        from . import dataloader, stage

        if not isinstance(dataset, stage.StageDataset):
            return original(dataset=dataset, **kwargs)
        return dataloader.stage_dataloader(run.require(), dataset, **kwargs)

    return get_tb_dataloader


def _save(original: Callable[..., Any]) -> Callable[..., Any]:
    def save(*args: Any, root_folder: Any, training_metadata: Any, parallel_context: Any, **kwargs: Any) -> None:
        active = run.active()
        if active is not None and parallel_context.world_pg.rank() == 0:
            active.save(root_folder)  # first: the original ends with a barrier, behind which any rank writes latest.txt
        original(
            *args,
            root_folder=root_folder,
            training_metadata=training_metadata,
            parallel_context=parallel_context,
            **kwargs,
        )

    return save


def _sanity_check(original: Callable[..., Any]) -> Callable[..., Any]:
    def sanity_check_dataloader(*, dataloader: Any, parallel_context: Any, config: Any) -> Iterator[Any]:
        active = run.active()
        extra = active.extra_keys if active is not None and not config.general.ignore_sanity_checks else frozenset()
        aside: deque[dict[str, Any]] = deque()

        def stock_keys() -> Iterator[dict[str, Any]]:
            for batch in dataloader:
                aside.append({key: batch.pop(key) for key in extra})
                yield batch

        checked = original(
            dataloader=stock_keys() if extra else dataloader, parallel_context=parallel_context, config=config
        )
        for batch in checked:
            kept = aside.popleft() if extra else {}
            yield {**batch, **{key: value.to("cuda") if hasattr(value, "to") else value for key, value in kept.items()}}

    return sanity_check_dataloader


def _masked_mean(original: Callable[..., Any]) -> Callable[..., Any]:
    def masked_mean(loss: Any, label_mask: Any, dtype: Any) -> Any:
        losses.observe(loss, label_mask)
        # The same, but 0 where nothing counts: a quarantined micro batch would give 0 / 0 and end the run.
        return (loss * label_mask).sum(dtype=dtype) / label_mask.sum().clamp(min=1)

    return masked_mean


PATCHES = (
    Patch(
        module="nanotron.config.config",
        name="from_dict",
        line="config/config.py:632 `return from_dict(data_class=config_class, ...)`",
        parameters=("data_class", "data", "config"),
        make=_dataset_type,
    ),
    Patch(
        module="nanotron.trainer",
        name="parse_ckpt_path",
        line="trainer.py:299 `self.init_checkpoint_path = parse_ckpt_path(...)`",
        parameters=("config", "parallel_context"),
        make=_trainer_start,
    ),
    Patch(
        module="transformers:AutoTokenizer",
        name="from_pretrained",
        line="run_train.py:194 `tokenizer = AutoTokenizer.from_pretrained(tokenizer_path)`",
        parameters=(),
        make=_tokenizer,
    ),
    Patch(
        module="nanotron.data.tokenized_bytes",
        name="get_tb_datasets",
        line="run_train.py:209 `train_dataset, data_log = get_tb_datasets(...)`",
        parameters=(
            *("config", "global_batch_size", "sequence_length", "train_steps", "current_iteration", "seed"),
            *("parallel_context", "consumed_samples", "consumed_tokens_per_dataset_folder"),
            "last_stages_consumed_tokens_per_dataset_folder",
        ),
        make=_datasets,
    ),
    Patch(
        module="nanotron.data.tokenized_bytes",
        name="get_tb_dataloader",
        line="run_train.py:223 `dataloader = get_tb_dataloader(...)`",
        parameters=(
            *("dataset", "micro_batch_size", "num_workers", "consumed_samples", "parallel_context"),
            *("input_pp_rank", "output_pp_rank", "use_position_ids"),
        ),
        make=_dataloader,
    ),
    Patch(
        module="nanotron.trainer",
        name="save",
        line="trainer.py:1263 `save(...)`, before latest.txt",
        parameters=("root_folder", "training_metadata", "parallel_context"),
        make=_save,
    ),
)

SANITY_PATCH = Patch(
    module="nanotron.trainer",
    name="sanity_check_dataloader",
    line="trainer.py:433 and 514 `self.current_dataloader = sanity_check_dataloader(...)`",
    parameters=("dataloader", "parallel_context", "config"),
    make=_sanity_check,
)

LOSS_PATCHES = tuple(
    Patch(
        module=f"nanotron.models.{model}",
        name="masked_mean",
        line=f"models/{model}.py `loss = masked_mean(loss, label_mask, dtype=torch.float)`",
        parameters=(),  # a TorchScript function shows none
        make=_masked_mean,
    )
    for model in ("llama", "qwen", "starcoder2")
)


def install() -> None:
    """What every run with nanotron main needs: all of it or, with a ConfigError, nothing."""
    for patch in PATCHES:
        patch.resolve()
    for patch in PATCHES:
        patch.apply()


def allow_equal_keys() -> None:
    """nanotron's sanity checks fail where a key is equal on two data parallel ranks, or of another shape.

    Concept tensors may well be: they go round the checks, which still see everything else.
    """
    SANITY_PATCH.apply()


def mend_losses() -> None:
    """Let the stock models that nanotron has loaded show their losses per token, and bear a mask without a token."""
    for patch in LOSS_PATCHES:
        if hasattr(sys.modules.get(patch.module), patch.name):
            patch.apply()
