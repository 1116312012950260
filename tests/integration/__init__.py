"""Rooms against real servers."""
