"""Several nodes: what they agree on, how partitions move between them, and how they speak to each other."""
