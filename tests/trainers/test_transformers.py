"""Arguments of ConceptTrainer: what is applied, and what is refused before a step is made."""

import copy
import json
from functools import partial
from itertools import pairwise
from pathlib import Path

import pytest
import torch
import yaml
from torch.nn.functional import cross_entropy, scaled_dot_product_attention
from torch.utils.data import Subset

import conceptloader as cl
from conceptloader.errors import ConfigError
from conceptloader.trace import open_run, query
from tests.corpora.for_megatron import write_config, write_datasets
from tests.docs import spike
from tests.raises import raises
from tests.trainers import values
from tests.trainers.values import rows, sgd

transformers = pytest.importorskip("transformers")
from conceptloader.integrations.transformers_lm import ConceptTrainer, collate  # noqa: E402
from tests.trainers.run_transformers import settings  # noqa: E402


class Named(torch.nn.Module):
    """Its forward names no loss mask: what the Trainer takes for unused columns."""

    def __init__(self):
        super().__init__()
        self.layer, self.seen = torch.nn.Linear(1, 1), []

    def forward(self, input_ids, labels, twice):
        self.seen.append((self.training, float(twice)))
        return {"loss": self.layer(torch.ones(1)).sum(), "logits": input_ids}


KINDS = """
plain: {}
packs: {seq_len: 64, packing: {bins: 4}}
packs in order: {seq_len: 64, packing: {bins: 4}}
documents: {seq_len: 64, outputs: {position_ids: document, mask_document_boundaries: true}}
mixing: {mixing: {odm: {}}, outputs: {dataset_id: true}}
indexed: {outputs: {sample_index: true}}
in order: {}
weighted: {outputs: {loss_weight: weight}}
"""


@pytest.fixture(scope="module")
def data(tmp_path_factory):
    """data(kind, samples): plain, in order, or weighted, with weights that are labels modulo 5."""
    folder = write_datasets(tmp_path_factory.mktemp("transformers"))
    sequential = {"order": "sequential", "datasets": {name: {"path": name} for name in ("code", "web")}}
    kinds = yaml.safe_load(KINDS)
    for kind in ("in order", "packs in order"):
        kinds[kind] |= sequential
    paths = {kind: write_config(folder / f"{kind}.yaml", **{"seq_len": 16, **more}) for kind, more in kinds.items()}
    return lambda kind="plain", samples=None: cl.SampleDataset(str(paths[kind]), samples)


@pytest.fixture
def make(data, tmp_path_factory):
    out = str(tmp_path_factory.mktemp("out"))

    def trainer(model=None, arguments=(), **options):
        given = settings(out, **{"max_steps": 1, **dict(arguments)})
        return ConceptTrainer(model or torch.nn.Linear(1, 1), given, **{"train_dataset": data(), **options})

    return trainer


def test_evaluations_read_no_window_twice(make, data):
    refused = "793 samples in a shuffled order, that is 552 of web, which has 549"
    with raises(ConfigError, "eval_dataset", refused):
        make(eval_dataset=data())
    with raises(ConfigError, "num_samples", "10000 with order sequential"):
        make(eval_dataset=data("in order", 10_000))
    with raises(ConfigError, "eval_dataset", "a Subset"):
        make(eval_dataset={"one": data("in order"), "other": Subset(data("in order"), range(3))})
    trainer = make(eval_dataset=data(samples=50))  # less than an epoch of either
    assert len(trainer.get_eval_dataloader()) == 7
    for call in (trainer.evaluate, trainer.predict, lambda data: trainer.evaluate({"some": data})):
        with raises(ConfigError, found=refused):
            call(data())


def test_a_data_collator_is_that_of_training_too(make, data):
    class Twice(collate):
        def __call__(self, samples):
            batch = super().__call__(samples)
            assert torch.equal(samples[1]["loss_mask"], samples.batch["loss_mask"][1])
            return {"twice": 2 * samples.batch["loss_mask"].sum(), **{k: batch[k] for k in ("input_ids", "labels")}}

    model = Named()
    trainer = make(model, data_collator=Twice(), eval_dataset=data(samples=12))
    trainer.train()
    trainer.evaluate()
    assert model.seen == [(True, 256.0), (False, 256.0), (False, 128.0)]
    with raises(ConfigError, "data_collator", "a function", "transformers_lm.collate or a"):
        make(data_collator=cl.collate_fn)
    with raises(ConfigError, "model_inputs", "['topic_ids'], but the data_collator has []"):
        make(data_collator=collate(), model_inputs=["topic_ids"])


def test_a_mixture_that_learns_needs_logits(make, data):
    class Silent(Named):
        def forward(self, **_):
            return {"loss": self.layer(torch.ones(1)).sum()}

    with raises(ConfigError, "losses", "no logits"):
        make(Silent(), train_dataset=data("mixing")).train()
    with raises(ConfigError, "set_weights"):
        make().set_weights({"web": 1})


def causal(name="Llama", **more):
    """A model whose attention matters: weights of 0.3, where a default initialisation has 0.02."""
    torch.manual_seed(0)
    shape = {
        "vocab_size": 256, "hidden_size": 16, "intermediate_size": 32, "num_hidden_layers": 2, "num_attention_heads": 2,
        "num_key_value_heads": 1, "head_dim": 8, "initializer_range": 0.3, "pad_token_id": 0, "bos_token_id": 0,
        "eos_token_id": 0, **more,
    }  # fmt: skip
    return transformers.AutoModelForCausalLM.from_config(getattr(transformers, f"{name}Config")(**shape))


def plain_loss(model, batch, smoothing=0):
    """The mean over labels that are trained on; each document by itself."""
    logits = values.apart(lambda ids, places: model(input_ids=ids, position_ids=places, use_cache=False).logits, batch)
    trained = batch["loss_mask"] == 1
    return cross_entropy(logits[trained], batch["labels"][trained], label_smoothing=smoothing)


def compare(folder, model, train, valid, loss=plain_loss, options=(), **more):
    """Losses of two steps of two micro batches of 4 rows, and of evaluations of 8 samples, against those by hand."""
    hand = copy.deepcopy(model).float()
    if hand.config._attn_implementation.startswith("flash"):
        hand.config._attn_implementation = "sdpa"
    sizes = {"max_steps": 2, "per_device_train_batch_size": 4, "gradient_accumulation_steps": 2, "seed": 1,
        "eval_strategy": "steps", "eval_steps": 1, "per_device_eval_batch_size": 4, "eval_on_start": True}  # fmt: skip
    trainer = ConceptTrainer(model, settings(folder, **sizes, **dict(options)), train_dataset=train, eval_dataset=valid,
        optimizers=(torch.optim.SGD(model.parameters(), lr=0.1), None), **more)  # fmt: skip
    before = trainer.evaluate()["eval_loss"]
    trainer.train()

    def evaluated():
        with torch.no_grad():
            return float(loss(hand, rows(valid)))

    trained, validated = [], [evaluated()]
    for value in sgd(hand, (loss(hand, rows(train, range(8 * k, 8 * k + 8))) for k in range(2)), rate=0.1):
        trained.append(value)
        validated.append(evaluated())
    log = trainer.state.log_history
    assert [line["loss"] for line in log if "loss" in line] == pytest.approx(trained, rel=2e-5)
    found = [line["eval_loss"] for line in log if "eval_loss" in line][-3:]
    assert [before, *found] == pytest.approx([validated[0], *validated], rel=2e-5)


def dense(query, key, value, *_, **more):
    """What flash_attn_func does, [B, S, heads, size]."""
    query, key, value = (x.transpose(1, 2) for x in (query, key, value))
    return scaled_dot_product_attention(query, key, value, is_causal=True, enable_gqa=True).transpose(1, 2)


def variable(query, key, value, cu_seqlens_q, cu_seqlens_k, **more):
    """What flash_attn_varlen_func does, [tokens, heads, size]."""
    assert torch.equal(cu_seqlens_q, cu_seqlens_k)
    parts = [dense(query[None, a:b], key[None, a:b], value[None, a:b])[0] for a, b in pairwise(cu_seqlens_q.tolist())]
    return torch.cat(parts)


@pytest.mark.parametrize("kind", ["packs", "documents"])
@pytest.mark.parametrize(
    ("name", "attention", "options"),
    [
        ("Llama", "sdpa", {"torch_compile": True, "torch_compile_backend": "eager"}),
        ("GPT2", "eager", {}),
        ("Llama", "flash_attention_2", {}),
        ("Llama", "flash_attention_2", {"gradient_checkpointing": True}),
    ],
    ids=["compiled", "GPT-2", "flash", "flash, with checkpointing"],
)
def test_documents_do_not_see_each_other(data, tmp_path, monkeypatch, kind, name, attention, options):
    """With several rows a batch, in training, and in evaluations before, at the start of it and in it."""
    import transformers.modeling_flash_attention_utils as flash

    functions = (dense, variable, None, None, None), (lambda **_: {}, lambda **_: {})
    monkeypatch.setattr(flash, "lazy_import_flash_attention", lambda *_, **__: functions)
    model = causal(name, attn_implementation="eager" if attention == "eager" else "sdpa",
        **({"attn_pdrop": 0, "resid_pdrop": 0, "embd_pdrop": 0} if name == "GPT2" else {}))  # fmt: skip
    model.config._attn_implementation = attention
    compare(tmp_path, model, data(kind), data("packs in order" if kind == "packs" else kind, 8), options=options)


def test_documents_that_would_see_each_other(data, tmp_path, make):
    """In training and in an evaluation, before a step is made; windows may have a cache, and such a model."""
    packs = {"train_dataset": data("packs"), "eval_dataset": data("packs in order", 8)}
    models = {
        "OPT": causal("OPT", word_embed_proj_dim=16, ffn_dim=32, activation_function="relu"),
        "Lfm2": causal("Lfm2", layer_types=["conv", "full_attention"]),
        "DeepseekV4": causal(
            "DeepseekV4",
            attn_implementation="eager",
            num_local_experts=2,
            num_experts_per_tok=1,
            moe_intermediate_size=16,
            q_lora_rank=8,
            index_topk=4,
        ),
        "GptOss": causal("GptOss", attn_implementation="eager", num_local_experts=2, num_experts_per_tok=1),
    }
    for name, model in models.items():
        trainer = make(model, **packs)
        for call in (trainer.train, trainer.evaluate):
            with raises(ConfigError, "position_ids", f"{name}ForCausalLM", fix="neither packing"):
                call()
        assert trainer.state.global_step == 0
    trainer = make(causal(), **packs, arguments={"use_cache": True})
    for call in (trainer.train, trainer.evaluate):
        with raises(ConfigError, "position_ids", "use_cache=True", fix="use_cache=False"):
            call()
    make(models["OPT"], arguments={"use_cache": True}).train()


def shifting(outputs, labels, num_items_in_batch=None):
    """As in the documentation of transformers."""
    logits, targets = outputs["logits"][..., :-1, :], labels[..., 1:]
    return cross_entropy(logits.flatten(0, 1), targets.flatten(), reduction="sum") / num_items_in_batch


def of_transformers(outputs, labels, num_items_in_batch=None):
    function = transformers.loss.loss_utils.ForCausalLMLoss
    return function(outputs["logits"], labels, 256, num_items_in_batch=num_items_in_batch)


@pytest.mark.parametrize(
    ("loss", "options"),
    [
        (plain_loss, shifting),
        (plain_loss, of_transformers),
        (partial(plain_loss, smoothing=0.2), {"label_smoothing_factor": 0.2}),
    ],
    ids=["function", "function of transformers", "smoothing"],
)
def test_losses_that_shift_labels_have_the_last_target(data, tmp_path, loss, options):
    more = {"compute_loss_func": options} if callable(options) else {"options": options}
    compare(tmp_path, causal(), data("documents"), data("documents", 8), loss, **more)


WITHOUT_EFFECT = yaml.safe_load("""
- {train_sampling_strategy: group_by_length}
- {data_seed: 0}
- {include_num_input_tokens_seen: non_padding}
- {dataloader_persistent_workers: true}
- {accelerator_config: {split_batches: true}}
- {accelerator_config: {dispatch_batches: true}}
""")


def test_arguments_about_data(make, caplog):
    """Those without effect, or with a wrong one, raise; each other argument is carried out."""
    for arguments in WITHOUT_EFFECT:
        (name,) = arguments
        with raises(ConfigError, f"TrainingArguments.{name}", expected=" or " if "strategy" in name else ""):
            make(arguments=arguments)
    make(arguments={"dataloader_num_workers": 2, "train_sampling_strategy": "sequential"})
    assert "dataloader_num_workers: no effect in training" in caplog.text


@pytest.mark.parametrize("at", [0, 2])
def test_a_batch_size_found_by_trial(data, tmp_path, at):
    """The Trainer begins again with less, where memory ran out: nothing that was trained is trained twice."""

    class Model(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.layer, self.seen, self.full = torch.nn.Linear(1, 1), [], True

        def forward(self, sample_index, **_):
            if self.full and len(self.seen) == at * 8:
                self.full = False
                raise RuntimeError("CUDA out of memory.")
            self.seen += sample_index.tolist()
            return {"loss": self.layer(torch.ones(1)).sum()}

    given = settings(tmp_path, max_steps=4, per_device_train_batch_size=8, auto_find_batch_size=True)
    model = Model()
    trainer = ConceptTrainer(model, given, train_dataset=data("indexed"), model_inputs=["sample_index"])
    if at:
        with raises(ConfigError, "auto_find_batch_size", "16 samples", fix="per_device_train_batch_size"):
            trainer.train()
        assert model.seen == list(range(16))
        model.seen.clear()
    trainer.train()  # a run of its own
    assert model.seen == list(range(len(model.seen)))
    assert len(model.seen) >= 4 * 7


def test_names_of_tensors(make, data):
    """Refused are those that no batch has, and weights not among them, in training and in evaluations, before a step
    is made; by collate alone with the first batch."""
    weighted, plain = data("weighted", 100), data("plain", 100)
    for datasets in (
        {"train_dataset": weighted},
        {"train_dataset": plain, "eval_dataset": weighted},
        {"train_dataset": plain, "eval_dataset": {"one": plain, "other": weighted}},
    ):
        with raises(ConfigError, "outputs.loss_weight", "model_inputs does not name"):
            make(**datasets)
    for datasets in ({"train_dataset": plain}, {"train_dataset": weighted, "eval_dataset": {"one": plain}}):
        with raises(ConfigError, "model_inputs", "unknown key of a batch 'loss_weight'", "labels, "):
            make(model_inputs=["loss_weight"], **datasets)
    with raises(ConfigError, "outputs.loss_weight", "model_inputs does not name"):
        collate()(weighted.__getitems__([0, 1]))
    with raises(ConfigError, "model_inputs", "unknown key of a batch 'loss_weigth'", fix="did you mean loss_weight?"):
        collate(["loss_weight", "loss_weigth"])(weighted.__getitems__([0, 1]))
    with pytest.raises(KeyError, match="loss_weigth"):  # samples one by one, whose layout nobody knows
        collate(["loss_weigth"])([weighted[0], weighted[1]])
    with raises(ConfigError, "model_inputs", "the string 'random'", fix="['ran"):
        make(train_dataset=plain, model_inputs="random")
    with raises(ConfigError, "train_dataset", "num_samples of 3", "at least one step, 8 samples"):
        make(train_dataset=data(samples=3)).get_train_dataloader()


def test_losses_of_samples(tmp_path, monkeypatch, capsys):
    """Their mean over a step is the loss that the Trainer logs. The documents of a spike are found by the page's
    commands."""
    config = spike.write_corpus(tmp_path / "data", monkeypatch)
    Path("run.yaml").write_text(json.dumps({**config, "outputs": {"mask_document_boundaries": True}}))
    sizes = {"max_steps": spike.STEPS, "per_device_train_batch_size": 8, "gradient_accumulation_steps": 2}
    given = settings("checkpoints", **sizes, learning_rate=0.05)
    trainer = ConceptTrainer(causal(vocab_size=257), given, train_dataset=cl.SampleDataset("run.yaml"))
    trainer.train()
    run = open_run(log="checkpoints")
    means = "select sum(loss) / sum(tokens) as mean from losses group by step order by step"
    logged = [line["loss"] for line in trainer.state.log_history if "loss" in line]
    assert query(run, means, steps=(0, spike.STEPS))["mean"].to_pylist() == pytest.approx(logged, rel=1e-3)
    spike.find_documents(capsys)
