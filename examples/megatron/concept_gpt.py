"""A GPT whose last pipeline stage also predicts the concepts of the span that each token lies in."""

import torch
from megatron.core.models.gpt.gpt_model import GPTModel


class ConceptGPT(GPTModel):
    """GPTModel with a concept head on the last stage.

    num_concepts: size of the vocabulary of the track `topic`.

    forward() takes, beside GPTModel's arguments, `concepts`: the dict from conceptloader. The concept tensors are plain
    arguments, so every micro batch that the pipeline schedule has in flight keeps its own.
    """

    def __init__(self, *args, num_concepts, **kwargs):
        super().__init__(*args, **kwargs)
        if self.post_process:
            self.concept_head = torch.nn.Linear(self.config.hidden_size, num_concepts, dtype=self.config.params_dtype)
            self.config.init_method(self.concept_head.weight)
            torch.nn.init.zeros_(self.concept_head.bias)

    def forward(self, *args, concepts=None, **kwargs):
        """As GPTModel.forward. With `concepts` the losses [B, S] of the last stage include the concept loss."""
        hidden = []
        hook = self.decoder.register_forward_hook(lambda module, inputs, output: hidden.append(output))
        try:
            output = super().forward(*args, **kwargs)
        finally:
            hook.remove()
        if concepts is None or not self.post_process:
            return output
        return output + 0.1 * self.concept_losses(hidden[-1].transpose(0, 1), concepts)

    def concept_losses(self, hidden, concepts):
        """float32 [B, S]: minus the mean log probability of the concepts of each token's span; 0 outside of spans.

        hidden: [B, S, hidden_size], final hidden states.
        """
        span = concepts["topic_span_index"].long()  # [B, S], -1 where there is no span
        ids = concepts["topic_ids"]  # [B, max_spans, max_concepts], -1 where there is no concept
        row = torch.arange(span.shape[0], device=span.device)[:, None]
        wanted = ids[row, span.clamp(min=0)]  # [B, S, max_concepts]
        present = (wanted >= 0) & (span >= 0)[..., None]
        log_p = torch.log_softmax(self.concept_head(hidden).float(), -1)
        picked = log_p.gather(-1, wanted.clamp(min=0)) * present
        return -picked.sum(-1) / present.sum(-1).clamp(min=1)
