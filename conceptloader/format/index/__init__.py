"""The concept index: concept -> spans, beside a dataset. docs/answers.md has its bytes.

Open layout.py first, then write.py.
"""
