"""The example's model, which takes scores of concepts, weights of the loss and a random number of each sample as well."""

from typing import Any

import nanotron.trainer
from concept_llama import ConceptLlama


class ScoredLlama(ConceptLlama):
    def forward(self, rating_scores: Any, random: Any, loss_weight: Any, **keys: Any) -> Any:
        return super().forward(**keys)


nanotron.trainer.CONFIG_TO_MODEL_CLASS["LlamaConfig"] = ScoredLlama
