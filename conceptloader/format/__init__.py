"""The conceptstream format: docs/format.md is its specification, these modules write, read and verify it.

Open spec/ for what the bytes mean, then read/ and write/; tools/ has what is done with whole datasets.
"""
