"""Invertible maps with a log-determinant: a Glow for vectors. The one door to nflows."""
