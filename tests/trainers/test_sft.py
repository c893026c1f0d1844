"""TRL's SFTTrainer over conceptloader's samples: losses and parameters of a loop by hand, and a resume."""

import copy

import pytest
import torch
import transformers
import yaml
from tokenizers import Tokenizer
from tokenizers.models import WordLevel

import conceptloader as cl
from conceptloader.errors import ConfigError
from tests.corpora.for_megatron import write_datasets
from tests.raises import raises
from tests.trainers import values
from tests.trainers.run_transformers import Llama, settings
from tests.trainers.values import PACKS, VOCABULARY, WINDOWS, config_of, rows

trl = pytest.importorskip("trl", reason="trl is not installed: `make trainers` has it")

STEPS, BATCH, HELD_OUT = 4, 12, 8


def tokenizer():
    words = {f"w{number}": number for number in range(VOCABULARY)}
    made = Tokenizer(WordLevel(words, unk_token="w0"))
    return transformers.PreTrainedTokenizerFast(tokenizer_object=made, eos_token="w0", pad_token="w0")


def evaluation(data):
    return cl.SampleDataset(values.held_out(data), HELD_OUT)


def trainer(folder, model, data, more=(), **options):
    sizes = {
        "per_device_train_batch_size": 4, "gradient_accumulation_steps": 3, "max_steps": STEPS, "save_steps": 2,
        "save_strategy": "steps", "eval_strategy": "steps", "eval_steps": 1, "per_device_eval_batch_size": 4,
        "gradient_checkpointing": False, "bf16": False,
    }  # fmt: skip
    from conceptloader.integrations.transformers_lm import ConceptSFTTrainer

    return ConceptSFTTrainer(
        model, settings(folder, trl.SFTConfig, **{**sizes, **options}), train_dataset=cl.SampleDataset(data),
        eval_dataset=evaluation(data), processing_class=tokenizer(),
        optimizers=(torch.optim.SGD(model.parameters(), lr=values.RATE), None), **dict(more),
    )  # fmt: skip


@pytest.mark.slow
@pytest.mark.parametrize("kind", values.KINDS)
def test_losses_and_parameters_are_those_of_a_loop_by_hand(tmp_path, kind):
    data = config_of(write_datasets(tmp_path), values.KINDS[kind])
    model = Llama()
    hand = copy.deepcopy(model)
    first = trainer(tmp_path / "out", model, data, max_steps=2)
    first.train()
    resumed = trainer(tmp_path / "out", copy.deepcopy(model), data)
    resumed.train(resume_from_checkpoint=str(tmp_path / "out" / "checkpoint-2"))
    log = [line for one in (first, resumed) for line in one.state.log_history]
    logged = {line["step"]: line for line in log if "loss" in line}
    evaluated = {line["step"]: line["eval_loss"] for line in log if "eval_loss" in line}
    source, valid = cl.SampleDataset(data), rows(evaluation(data))
    losses = (hand.by_hand(rows(source, range(step * BATCH, step * BATCH + BATCH))) for step in range(STEPS))
    for step, loss in enumerate(values.sgd(hand, losses), 1):
        assert logged[step]["loss"] == pytest.approx(loss, rel=1e-5)
        with torch.no_grad():
            assert evaluated[step] == pytest.approx(hand.by_hand(valid).item(), rel=1e-5)
    assert logged[2]["num_tokens"] == 2 * BATCH * source.blend.config.seq_len
    for ours, theirs in zip(resumed.model.parameters(), hand.parameters(), strict=True):
        assert torch.allclose(ours, theirs, rtol=1e-4, atol=1e-5)


@pytest.mark.filterwarnings("ignore::UserWarning")
def test_prefixes_let_documents_see_each_other(tmp_path):
    """With them position_ids have no effect in peft's models. LoRA has documents apart, as the model has."""
    peft = pytest.importorskip("peft", reason="peft is not installed: `make trainers` has it")
    data = config_of(write_datasets(tmp_path), PACKS)
    options = {"task_type": "CAUSAL_LM", "num_virtual_tokens": 2}
    prefixes = trainer(tmp_path / "out", Llama(), data, {"peft_config": peft.PrefixTuningConfig(**options)})
    for call in (prefixes.train, prefixes.evaluate):
        with raises(ConfigError, "position_ids", "use_cache=False", fix="LoRA"):
            call()
    lora = trainer(tmp_path / "out", Llama(), data, {"peft_config": peft.LoraConfig(task_type="CAUSAL_LM")})
    with torch.no_grad():
        evaluated = Llama().by_hand(rows(evaluation(data))).item()
    assert lora.evaluate()["eval_loss"] == pytest.approx(evaluated, rel=1e-5)


PREPARE = yaml.safe_load("""
packing: true
packing_strategy: wrapped
eval_packing: true
pad_to_multiple_of: 8
completion_only_loss: true
assistant_only_loss: true
shuffle_dataset: true
dataset_num_proc: 2
dataset_text_field: content
dataset_kwargs: {skip_prepare_dataset: true}
max_length: 512
""")


def test_options_that_prepare_data_are_refused(tmp_path):
    data = config_of(write_datasets(tmp_path), WINDOWS)
    for name, value in PREPARE.items():
        with raises(ConfigError, f"SFTConfig.{name}", repr(value)):
            trainer(tmp_path / "out", Llama(), data, **{name: value})
    with raises(ConfigError, "formatting_func", "a function"):
        trainer(tmp_path / "out", Llama(), data, {"formatting_func": str})
    trainer(tmp_path / "out", Llama(), data, max_length=data["seq_len"])
