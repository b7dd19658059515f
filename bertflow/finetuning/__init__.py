"""The encoder itself, trained with labels."""
