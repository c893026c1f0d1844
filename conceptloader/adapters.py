"""For authors of adapters and training loops: the account of a run, its observers, and the parts of an order."""

from conceptloader.base.hashing import derive_key
from conceptloader.loader.batch.digest import batch_digest
from conceptloader.loader.batch.loader import BaseLoader
from conceptloader.order.partition import Partition, Plan
from conceptloader.order.progress.runlog import RunLog, RunStart
from conceptloader.order.progress.spec import OrderSpec
from conceptloader.order.schedule import BatchSchedule
from conceptloader.run.entry import Entry
from conceptloader.run.observer import Observer
from conceptloader.run.ranks import Ranks
from conceptloader.run.training import TrainingRun

__all__ = [
    "BaseLoader",
    "BatchSchedule",
    "Entry",
    "Observer",
    "OrderSpec",
    "Partition",
    "Plan",
    "Ranks",
    "RunLog",
    "RunStart",
    "TrainingRun",
    "batch_digest",
    "derive_key",
]
