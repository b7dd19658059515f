"""Tokens, words in sentences, static against contextual vectors."""
