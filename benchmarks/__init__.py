"""Speed as ratios against a stated rival in the same run: make bench, or make bench NAME=drain."""
