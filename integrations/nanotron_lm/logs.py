"""What conceptloader logs, in nanotron's log: warnings of every rank, the rest of rank 0 unless marked `any_rank`."""

import logging
import os


class _Forward(logging.Handler):
    def emit(self, record: logging.LogRecord) -> None:
        everywhere = record.levelno >= logging.WARNING or getattr(record, "any_rank", False)
        if not everywhere and int(os.environ.get("RANK", "0")):
            return
        target = logging.getLogger("nanotron.conceptloader")
        if target.isEnabledFor(record.levelno):
            # nanotron's handlers split the message by lines before it is formatted
            target.handle(target.makeRecord(target.name, record.levelno, record.pathname, record.lineno,
                                            record.getMessage(), (), None))  # fmt: skip


def forward() -> None:
    """Send the records of all our loggers to nanotron's handlers, once."""
    from nanotron.logging import get_logger

    get_logger("nanotron.conceptloader")
    ours = logging.getLogger("conceptloader")
    if not any(isinstance(handler, _Forward) for handler in ours.handlers):
        ours.addHandler(_Forward())
        ours.propagate = False
    ours.setLevel(logging.INFO)
