"""Drives the API class of PyPI's kafka-mcp (v2 consumers and the v3 subset): a script of its own, see test_clients.py.

usage: mcp_driver.py URL TOPIC
"""

import sys

from kafka_mcp.api.api_client_kafka import KafkaApi


def read(api: KafkaApi, count: int) -> list[object]:
    values: list[object] = []
    while len(values) < count:
        values += [record["value"] for record in api.consume_records("mcp", "c1", timeout=2000)]
    return values


def main(url: str, topic: str) -> None:
    api = KafkaApi(url)
    assert api.list_clusters()["data"][0]["cluster_id"] == api.cluster_id()
    assert api.get_cluster()["kind"] == "KafkaCluster"
    assert [broker["broker_id"] for broker in api.list_brokers()["data"]] == [0]
    assert api.get_broker(0)["kind"] == "KafkaBroker"
    created = api.create_topic(topic, partitions_count=2)
    assert (created["topic_name"], created["partitions_count"]) == (topic, 2)
    assert topic in [row["topic_name"] for row in api.list_topics()["data"]]
    assert len(api.list_partitions(topic)["data"]) == 2
    assert api.get_partition(topic, 1)["partition_id"] == 1
    assert api.list_topic_configs(topic)["data"]
    for number in range(3):
        receipt = api.produce_record(topic, value={"n": number}, key=f"k{number}")
        assert receipt["error_code"] == 200, receipt
    api.create_consumer("mcp", "c1")
    api.subscribe_consumer("mcp", "c1", [topic])
    assert sorted(value["n"] for value in read(api, 3)) == [0, 1, 2]
    api.commit_offsets("mcp", "c1")
    print("restart", flush=True)
    sys.stdin.readline()
    api.produce_record(topic, value={"n": 3})
    assert [value["n"] for value in read(api, 1)] == [3]
    assert "mcp" in [group["consumer_group_id"] for group in api.list_consumer_groups()["data"]]
    assert api.get_consumer_group("mcp")["state"] == "STABLE"
    assert [member["consumer_id"] for member in api.list_consumers("mcp")["data"]] == ["c1"]
    assert api.get_group_lag_summary("mcp")["total_lag"] == 1  # read, and not committed
    assert sum(row["lag"] for row in api.get_group_lags("mcp")["data"]) == 1
    api.delete_consumer("mcp", "c1")
    api.delete_topic(topic)
    print("done", flush=True)


main(*sys.argv[1:])
