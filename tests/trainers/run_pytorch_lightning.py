"""A run of Lightning as its users know it by the other name: the adapter takes the package that is imported first."""

import pytorch_lightning

from tests.trainers.run_lightning import pl, train

assert pl is pytorch_lightning
__all__ = ["train"]
