"""Kafka's wire protocol: unmodified Kafka clients on the same topics and groups as every other surface."""
