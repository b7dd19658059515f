"""Fitting a flow: the one door to Lightning."""
