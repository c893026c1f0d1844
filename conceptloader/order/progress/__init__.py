"""Where a run stands in its order: what is saved with a checkpoint, and whether a configuration may resume from it.

Open state.py first, then resume.py.
"""
