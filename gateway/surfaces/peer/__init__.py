"""What nodes of one cluster ask each other, on a listener of its own."""
