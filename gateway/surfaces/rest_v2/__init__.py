"""Confluent REST Proxy v2: produce, fetch, metadata, consumer instances."""
