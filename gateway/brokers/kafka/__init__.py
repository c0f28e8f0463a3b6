"""A Kafka cluster as a broker: partitions of mq that lie in partitions of Kafka topics, batch by batch."""
