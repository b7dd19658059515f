"""Adapters to other libraries, each behind an extra, none imported before it is asked for."""
