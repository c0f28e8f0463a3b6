"""Confluent REST Proxy v3, the part that its clients use."""
