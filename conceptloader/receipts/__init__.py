"""Receipts: a proof for anyone that a document was in these steps of a run and in no others.

prepare.py makes a dataset ready, trees.py has what is hashed, prove.py makes receipts: docs/receipts-format.md.
Open prove.py first.
"""

from conceptloader.receipts.prepare import prepare
from conceptloader.receipts.prove import RunStatement, make_receipt, state_run

__all__ = ["RunStatement", "make_receipt", "prepare", "state_run"]
