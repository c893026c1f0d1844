"""The example's model, which takes scores of concepts and a random number of each sample beside its own keys."""

from typing import Any

import nanotron.trainer
from concept_llama import ConceptLlama


class ScoredLlama(ConceptLlama):
    def forward(self, rating_scores: Any, random: Any, **keys: Any) -> Any:
        return super().forward(**keys)


nanotron.trainer.CONFIG_TO_MODEL_CLASS["LlamaConfig"] = ScoredLlama
