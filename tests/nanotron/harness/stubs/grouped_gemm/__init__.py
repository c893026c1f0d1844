"""Imported by the mixture-of-experts models."""
