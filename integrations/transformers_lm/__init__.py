"""conceptloader for Hugging Face's Trainer: one whose train_dataset is a SampleDataset. See docs/trainers.md.

Open data.py first.
"""

from conceptloader.base.packages import public

__all__, __getattr__ = public(__name__, {"data": "ConceptTrainer Progress collate", "sft": "ConceptSFTTrainer"})
