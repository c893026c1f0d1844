"""The example's model, which also takes scores of concepts, weights of the loss and random numbers of samples."""

from typing import Any

import nanotron.trainer
from concept_llama import ConceptLlama


class ScoredLlama(ConceptLlama):
    def forward(self, rating_scores: Any, sample_seed: Any, loss_weight: Any, **keys: Any) -> Any:
        return super().forward(**keys)


nanotron.trainer.CONFIG_TO_MODEL_CLASS["LlamaConfig"] = ScoredLlama
