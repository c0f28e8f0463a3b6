"""The commit log: entries, the one writer of its tail, recovery and retention."""
