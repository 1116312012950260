"""The whole road: real worker and drain processes, killed for real."""
