"""TRL's SFTTrainer over conceptloader's samples: losses and parameters of a loop by hand, and a resume."""

import copy
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers
from tokenizers import Tokenizer
from tokenizers.models import WordLevel

import conceptloader as cl
from conceptloader.errors import ConfigError
from tests.raises import raises
from tests.trainers import values
from tests.trainers.by_hand import VOCABULARY, batched
from tests.trainers.run_transformers import Llama
from tests.trainers.test_values import PACKS, WINDOWS, config_of, samples_of, write_datasets

trl = pytest.importorskip("trl", reason="trl is not installed: `make trainers` has it")

STEPS, BATCH, HELD_OUT = 4, 12, 8


def tokenizer() -> Any:
    words = {f"w{number}": number for number in range(VOCABULARY)}
    made = Tokenizer(WordLevel(words, unk_token="w0"))
    return transformers.PreTrainedTokenizerFast(tokenizer_object=made, eos_token="w0", pad_token="w0")


def held_out(data: dict[str, Any]) -> cl.SampleDataset:
    masked = {"masked": {"path": data["datasets"]["masked"]["path"]}}
    return cl.SampleDataset({**data, "datasets": masked, "order": "sequential"}, HELD_OUT)


def trainer(folder: Path, model: Any, data: dict[str, Any], **options: Any) -> Any:
    settings: dict[str, Any] = {
        "per_device_train_batch_size": 4, "gradient_accumulation_steps": 3, "max_steps": STEPS, "use_cpu": True,
        "learning_rate": values.RATE, "lr_scheduler_type": "constant", "max_grad_norm": 0, "logging_steps": 1,
        "save_steps": 2, "eval_strategy": "steps", "eval_steps": 1, "per_device_eval_batch_size": 4, "report_to": [],
        "gradient_checkpointing": False, "bf16": False, "disable_tqdm": True,
    }  # fmt: skip
    from conceptloader.integrations.transformers_lm import ConceptSFTTrainer

    return ConceptSFTTrainer(
        model, trl.SFTConfig(str(folder), **{**settings, **options}), train_dataset=cl.SampleDataset(data),
        eval_dataset=held_out(data), processing_class=tokenizer(),
        optimizers=(torch.optim.SGD(model.parameters(), lr=values.RATE), None),
    )  # fmt: skip


def by_hand(model: Any, samples: Any) -> torch.Tensor:
    """The mean loss of the labels that are trained on; documents, which begin at position 0, do not see each other."""
    losses = []
    for one in samples:
        starts = (torch.tensor(one.positions) == 0).nonzero().flatten().tolist()
        parts = torch.tensor_split(torch.tensor(one.inputs), starts[1:])
        logits = torch.cat([model(input_ids=part[None]).logits[0] for part in parts if len(part)])
        each = torch.nn.functional.cross_entropy(logits, torch.tensor(one.labels), reduction="none")
        losses.append(each[torch.tensor(one.mask) == 1])
    return torch.cat(losses).mean()


@pytest.mark.slow
@pytest.mark.parametrize("kind", [WINDOWS, PACKS], ids=["windows", "packs"])
def test_losses_and_parameters_are_those_of_a_loop_by_hand(tmp_path: Path, kind: dict[str, Any]) -> None:
    data = config_of(write_datasets(tmp_path), kind)
    model: Any = Llama()
    hand = copy.deepcopy(model)
    first = trainer(tmp_path / "out", model, data, max_steps=2)
    first.train()
    resumed = trainer(tmp_path / "out", copy.deepcopy(model), data)
    resumed.train(resume_from_checkpoint=str(tmp_path / "out" / "checkpoint-2"))
    log = [line for one in (first, resumed) for line in one.state.log_history]
    logged = {line["step"]: line for line in log if "loss" in line}
    evaluated = {line["step"]: line["eval_loss"] for line in log if "eval_loss" in line}

    optimizer = torch.optim.SGD(hand.parameters(), lr=values.RATE)
    source = cl.SampleDataset(data)
    valid = samples_of(held_out(data), kind, HELD_OUT)
    for step, samples in enumerate(batched(samples_of(source, kind, STEPS * BATCH), BATCH), 1):
        loss = by_hand(hand, samples)
        loss.backward()  # type: ignore[no-untyped-call]
        optimizer.step()
        optimizer.zero_grad()
        assert logged[step]["loss"] == pytest.approx(loss.item(), rel=1e-5)
        with torch.no_grad():  # the Trainer's mean is over its batches
            means = [by_hand(hand, batch).item() for batch in batched(valid, 4)]
        assert evaluated[step] == pytest.approx(sum(means) / len(means), rel=1e-5)
    assert logged[2]["num_tokens"] == 2 * BATCH * source.blend.config.seq_len
    for ours, theirs in zip(resumed.model.parameters(), hand.parameters(), strict=True):
        assert torch.allclose(ours, theirs, rtol=1e-4, atol=1e-5)


def test_options_that_prepare_data_are_refused(tmp_path: Path) -> None:
    data = config_of(write_datasets(tmp_path), WINDOWS)
    for name in ("packing", "completion_only_loss", "assistant_only_loss"):
        with raises(ConfigError, f"SFTConfig.{name}", expected="data that are prepared"):
            trainer(tmp_path / "out", Llama(), data, **{name: True})
