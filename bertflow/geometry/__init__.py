"""Measures of geometry, each with its section of the report beside it."""
