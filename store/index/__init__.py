"""Consume queues: the index from (queue, offset) to a place in the commit log. `base` is the seam."""
