"""Llama with a concept head on the last pipeline stage: which concepts does each span of the text carry?

    torchrun --nproc_per_node 2 -m conceptloader.launch --import concept_llama run_train.py --config-file concepts.yaml

The head averages the last hidden states of every span and predicts its set of concepts. The batch brings, for a track
called "concepts", `concepts_span_index` (the span of every token) and `concepts_ids` (the concepts of every span): see
`nanotron.model_inputs` in concepts.yaml.
"""

import nanotron.trainer
import torch
from nanotron.models.llama import LlamaForTraining
from nanotron.parallel.pipeline_parallel.block import PipelineBlock
from nanotron.parallel.tensor_parallel.distributed_differentiable_primitives import differentiable_all_reduce_sum
from nanotron.parallel.tensor_parallel.enum import TensorParallelLinearMode
from nanotron.parallel.tensor_parallel.nn import TensorParallelColumnLinear
from torch import nn
from torch.nn import functional

CONCEPTS = 64  # size of the vocabulary of the track
WEIGHT = 0.5  # of the head's loss beside the language model's


class ConceptHead(nn.Module):
    """Mean binary cross-entropy over the concepts of the spans; each tensor parallel rank scores a part of them."""

    def __init__(self, hidden_size, tp_pg):
        super().__init__()
        self.tp_pg = tp_pg
        mode = TensorParallelLinearMode.ALL_REDUCE
        self.scores = TensorParallelColumnLinear(hidden_size, CONCEPTS, pg=tp_pg, mode=mode, bias=False)

    def forward(
        self,
        lm_loss,
        hidden_states,  # [tokens, samples, hidden size]
        concepts_span_index,  # [samples, tokens], -1 where a token has no span
        concepts_ids,  # [samples, spans, concepts], -1 where there is none
    ):
        spans = concepts_ids.shape[1]
        index = torch.arange(spans, device=concepts_ids.device)
        member = (concepts_span_index[:, None, :] == index[:, None]).to(hidden_states.dtype)  # [samples, spans, tokens]
        lengths = member.sum(-1)
        means = torch.einsum("bst,tbh->bsh", member, hidden_states) / lengths.clamp(min=1)[..., None]
        scores = self.scores(means).float()  # [samples, spans, this rank's concepts]
        width = scores.shape[-1]
        wanted = functional.one_hot(concepts_ids + 1, CONCEPTS + 1).amax(-2)[..., 1:]  # [samples, spans, CONCEPTS]
        wanted = wanted[..., self.tp_pg.rank() * width : (self.tp_pg.rank() + 1) * width].to(scores.dtype)
        losses = functional.binary_cross_entropy_with_logits(scores, wanted, reduction="none").sum(-1)
        losses = differentiable_all_reduce_sum(losses, group=self.tp_pg) / CONCEPTS
        used = (lengths > 0).to(losses.dtype)
        concept_loss = (losses * used).sum() / used.sum().clamp(min=1)
        return {"loss": lm_loss + WEIGHT * concept_loss, "concept_loss": concept_loss}


class ConceptLlama(LlamaForTraining):
    """Takes two keys more than Llama: tensors where the head is, TensorPointers on the other pipeline ranks."""

    def __init__(self, config, parallel_context, parallel_config, random_states=None):
        super().__init__(config, parallel_context, parallel_config, random_states)
        self.concept_head = PipelineBlock(
            p2p=self.model.p2p,
            module_builder=ConceptHead,
            module_kwargs={"hidden_size": config.hidden_size, "tp_pg": parallel_context.tp_pg},
            module_input_keys={"lm_loss", "hidden_states", "concepts_span_index", "concepts_ids"},
            module_output_keys={"loss", "concept_loss"},
        )

    def forward(
        self,
        input_ids,
        input_mask,
        label_ids,
        label_mask,
        concepts_span_index,
        concepts_ids,
    ):
        logits, hidden_states = self.model.forward_with_hidden_states(input_ids=input_ids, input_mask=input_mask)
        lm_loss = self.loss(sharded_logits=logits, label_ids=label_ids, label_mask=label_mask)["loss"]
        return self.concept_head(
            lm_loss=lm_loss,
            hidden_states=hidden_states,
            concepts_span_index=concepts_span_index,
            concepts_ids=concepts_ids,
        )


nanotron.trainer.CONFIG_TO_MODEL_CLASS["LlamaConfig"] = ConceptLlama
