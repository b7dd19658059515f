"""An encoder for other tools: what is written, how it is checked, and how it is pushed."""
