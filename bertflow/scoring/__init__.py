"""What a cosine means: percentiles, probabilities, thresholds, and text that is out of domain."""
