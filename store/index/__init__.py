"""Consume queues: the index from (queue, offset) to a position in the commit log. `base` is the seam."""
