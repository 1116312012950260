"""Private servers, the double of the outside services, and the story of the demo.

Tests, demo and benchmarks share these; the product never imports them.
"""
