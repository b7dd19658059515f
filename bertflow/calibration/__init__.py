"""Calibrators: row-wise maps from raw to calibrated embeddings, fitted without labels."""
