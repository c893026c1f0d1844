"""The example's model, which also takes scores of concepts, weights of the loss and random numbers of samples."""

import nanotron.trainer
from concept_llama import ConceptLlama


class ScoredLlama(ConceptLlama):
    def forward(self, rating_scores, sample_seed, loss_weight, **keys):
        return super().forward(**keys)


nanotron.trainer.CONFIG_TO_MODEL_CLASS["LlamaConfig"] = ScoredLlama
