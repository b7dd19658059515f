"""Calibrated encoders as other tools load them."""
