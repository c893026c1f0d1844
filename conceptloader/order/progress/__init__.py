"""Where a run stands in its order: what is saved with a checkpoint, and whether a configuration may go on from it.

Open state.py first, then resume.py.
"""
