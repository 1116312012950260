"""What workers and drains promise the broker: the topology, the message on the wire, the notes beside it."""
