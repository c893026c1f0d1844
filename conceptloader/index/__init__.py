"""The concept index of a track, made of a finished dataset: an add-on. Open reader.py first."""
