"""Data directories of older versions, and what made them."""
