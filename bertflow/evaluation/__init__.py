"""Evaluation: tasks, scores, their uncertainty, and how each score was made."""
