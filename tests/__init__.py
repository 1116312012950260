"""Tests against real servers. A test's docstring names the number in the requirements that it proves."""
