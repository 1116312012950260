"""Pure rooms, without any server."""
