"""Percentiles, probabilities, thresholds; in or out of domain."""
