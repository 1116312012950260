"""Drain dead letters into a database, group them, and replay them deliberately."""
