"""How partitions are shared among the members of a group: one file a strategy, `registry` for their names."""
