"""The conceptstream format, version 1: docs/format.md is its specification, these modules write, read and verify it."""
