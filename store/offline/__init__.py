"""Tools for a data directory that no server has open: verify, repair, dump, build the index again."""
