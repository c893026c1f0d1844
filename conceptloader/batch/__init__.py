"""Batches in numpy: a plain reference and a compiled engine that fill the same arrays, described by BatchLayout."""
