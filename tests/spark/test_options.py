"""Options: what is understood, and that nothing wrong is ignored."""

from __future__ import annotations

import pytest
from pyspark.sql.types import ArrayType, LongType, StructType
from pyspark_mq.errors import OptionError
from pyspark_mq.identity import EPOCH_MAX
from pyspark_mq.offsets import Assign, AtTime, AtTimes, Earliest, Exact, Latest, Subscribe, SubscribePattern
from pyspark_mq.options import ALIASES, NAMES, WRITE_NAMES, Options, WriteOptions, check_names, is_about_reading
from pyspark_mq.source import columns_of, columns_to_send

BASE = {"url": "http://h:1", "subscribe": "t"}


def test_names_are_case_insensitive_and_defaults_are_those_of_the_documentation() -> None:
    options = Options.parse({"URL": " http://a:1/ ,https://b/mq", "SUBSCRIBE": "x, y,x"})
    assert options.endpoint.urls == ("http://a:1", "https://b/mq")
    assert options.selection == Subscribe(("x", "y"))
    assert options.starting is None
    assert options.fail_on_data_loss
    assert options.columns == ("key", "value", "topic", "partition", "offset", "timestamp", "timestampType")


def test_every_option_arrives() -> None:
    options = Options.parse(
        {
            "url": "http://h:1",
            "token": "secret",
            "assign": '{"t":[1,0,1]}',
            "startingOffsets": "earliest",
            "endingOffsets": '{"t":{"0":5,"1":-1}}',
            "startingOffsetsByTimestampStrategy": "LATEST",
            "failOnDataLoss": "False",
            "minPartitions": "3",
            "maxRecordsPerPartition": "10",
            "minRecordsPerPartition": "2",
            "maxOffsetsPerTrigger": "100",
            "minOffsetsPerTrigger": "50",
            "maxTriggerDelay": "30s",
            "fetchBytes": "1000",
            "requestTimeoutMs": "7",
            "retryTimeoutMs": "8",
            "groupId": "g",
            "valueFormat": "JSON",
            "mode": "failfast",
        }
    )
    assert (options.group, options.json_values, options.fail_fast) == ("g", True, True)
    assert options.selection == Assign({"t": (0, 1)})
    assert (options.starting, options.ending) == (Earliest(), Exact({"t": {0: 5, 1: -1}}))
    assert options.no_match_is_latest
    assert not options.fail_on_data_loss
    assert Options.parse({**BASE, "includeHeaders": "true"}).columns[-1] == "headers"
    assert (options.split.tasks_min, options.split.records_max, options.split.records_min) == (3, 10, 2)
    assert (options.records_per_trigger_max, options.records_per_trigger_min) == (100, 50)
    assert (options.trigger_delay_max_ms, options.fetch_bytes) == (30_000, 1000)
    assert (options.endpoint.request_timeout_ms, options.endpoint.retry_timeout_ms) == (7, 8)
    assert options.endpoint.token == "secret"
    assert "secret" not in repr(options)


def test_the_path_of_load_names_topics_unless_an_option_does() -> None:
    assert Options.parse({"url": "http://h", "path": "t"}).selection == Subscribe(("t",))
    assert Options.parse({"url": "http://h", "path": "t", "subscribePattern": "x.*"}).selection == SubscribePattern(
        "x.*"
    )


def test_a_time_goes_before_times_and_times_before_offsets() -> None:
    given = {**BASE, "startingOffsets": "latest"}
    assert Options.parse(given).starting == Latest()
    given["startingOffsetsByTimestamp"] = '{"t":{"0":7}}'
    assert Options.parse(given).starting == AtTimes({"t": {0: 7}})
    given["startingTimestamp"] = "9"
    assert Options.parse(given).starting == AtTime(9)


def test_the_offset_of_a_stream_is_a_place_to_start() -> None:
    given = {**BASE, "startingOffsets": '{"#epochs":{"t":"1"},"t":{"0":7}}'}
    assert Options.parse(given).starting == Exact({"t": {0: 7}})


def test_an_unknown_option_is_an_error_that_lists_all() -> None:
    with pytest.raises(OptionError) as caught:
        Options.parse({**BASE, "startingOffset": "earliest"})
    assert "'startingOffset'" in str(caught.value)
    assert all(name in str(caught.value) for name in NAMES)


def test_names_of_the_kafka_source_that_mean_the_same_are_taken() -> None:
    theirs = {"mq.url": "http://h:1", "kafka.request.timeout.ms": "7", "kafka.group.id": "g", "subscribe": "t"}
    options = Options.parse(theirs)
    assert (options.endpoint.urls, options.endpoint.request_timeout_ms, options.group) == (("http://h:1",), 7, "g")
    assert Options.parse({**BASE, "kafkaConsumer.pollTimeoutMs": "9"}).endpoint.request_timeout_ms == 9
    assert set(ALIASES.values()) <= set(NAMES)


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ({**BASE, "kafka.bootstrap.servers": "h:9092"}, r"'kafka\.bootstrap\.servers' \(use url\)"),
        ({**BASE, "fetchOffset.numRetries": "5"}, r"'fetchOffset\.numRetries' \(use retryTimeoutMs\)"),
        ({**BASE, "kafka.isolation.level": "x"}, "use nothing"),
        ({**BASE, "mq.url": "http://other:1"}, "url is given twice, also as "),
        ({"subscribe": "t"}, "url is missing"),
        ({"url": "http://h"}, "exactly one of subscribe, subscribePattern, assign; none"),
        ({**BASE, "assign": '{"t":[0]}'}, "subscribe and assign was given"),
        ({**BASE, "url": "ftp://h"}, "http://host:port"),
        ({**BASE, "url": "http://h:99999"}, "http://host:port"),
        ({**BASE, "url": ","}, "url is empty"),
        ({**BASE, "subscribe": " ,"}, "names no topic"),
        ({"url": "http://h", "subscribePattern": "("}, "regular expression"),
        ({"url": "http://h", "assign": '{"t":["0"]}'}, r'\{"orders":\[0,1\]\}'),
        ({"url": "http://h", "assign": "{}"}, r'\{"orders":\[0,1\]\}'),
        ({**BASE, "startingOffsets": "first"}, "earliest, latest, or JSON"),
        ({**BASE, "startingOffsets": '{"t":{"0":-3}}'}, "earliest, latest, or JSON"),
        ({**BASE, "startingOffsets": '{"t":{"0":true}}'}, "earliest, latest, or JSON"),
        ({**BASE, "endingTimestamp": "-1"}, "milliseconds since 1970"),
        ({**BASE, "endingOffsetsByTimestamp": '{"t":{"x":1}}'}, "is JSON like"),
        ({**BASE, "startingOffsetsByTimestampStrategy": "guess"}, "one of error, latest"),
        ({**BASE, "failOnDataLoss": "no"}, "one of true, false"),
        ({**BASE, "minPartitions": "0"}, "whole number above 0"),
        ({**BASE, "maxTriggerDelay": "5 weeks"}, "such as 15m"),
        ({**BASE, "columns": "value,valeu"}, "out of key, value"),
        ({**BASE, "columns": "value,Value"}, "each once"),
        ({**BASE, "caFile": "/no/such/file"}, "certificates in PEM, on the driver"),
        ({**BASE, "caFile": __file__}, "certificates in PEM, on the driver"),
        ({**BASE, "valueFormat": "avro"}, "one of binary, json"),
        ({**BASE, "valueFormat": "json", "mode": "dropmalformed"}, "one of permissive, failfast"),
        ({**BASE, "mode": "failfast"}, "mode is for valueFormat=json"),
        ({**BASE, "valueFormat": "json", "columns": "key"}, "columns is not for valueFormat=json"),
    ],
)
def test_a_wrong_value_is_an_error_that_says_what_is_right(given: dict[str, str], said: str) -> None:
    with pytest.raises(OptionError, match=said):
        Options.parse(given)


WRITE = {"url": "http://h:1", "topic": "t"}


@pytest.mark.parametrize(
    ("given", "kept"), [({}, True), ({"includeHeaders": "true"}, True), ({"includeHeaders": "false"}, False)]
)
def test_headers_are_written_unless_the_user_does_not_want_them(given: dict[str, str], kept: bool) -> None:
    header = StructType().add("key", "string").add("value", "binary")
    schema = StructType().add("value", "string").add("headers", ArrayType(header))
    names = [column.name for column in columns_to_send(schema, WriteOptions.parse({**WRITE, **given}))]
    assert names == (["value", "headers"] if kept else ["value"])


def test_every_option_of_a_write_arrives() -> None:
    given = {**WRITE, "writeId": "w", "writeEpoch": str(EPOCH_MAX), "sortRows": "true", "checkpointlocation": "/x"}
    options = WriteOptions.parse(given)
    assert (options.topic, options.write_id, options.write_epoch, options.sort_rows) == ("t", "w", EPOCH_MAX, True)
    assert WriteOptions.parse({"url": "http://h", "path": "t"}).topic == "t"
    assert WriteOptions.parse({"url": "http://h"}).topic is None


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ({**WRITE, "subscribe": "t"}, "unknown option 'subscribe'; the options are url, .*, writeId"),
        ({**WRITE, "writeId": "a b"}, "visible ASCII characters"),
        ({**WRITE, "writeId": "w", "writeEpoch": str(EPOCH_MAX + 1)}, f"from 0 to {EPOCH_MAX}"),
        ({**WRITE, "writeEpoch": "1"}, "give that one too"),
        ({**WRITE, "sortRows": "1"}, "one of true, false"),
    ],
)
def test_a_wrong_option_of_a_write_says_what_is_right(given: dict[str, str], said: str) -> None:
    with pytest.raises(OptionError, match=said):
        WriteOptions.parse(given)


def test_a_name_that_is_neither_for_reads_nor_for_writes_is_known_before_it_is_known_which() -> None:
    check_names(dict.fromkeys((*NAMES, *WRITE_NAMES, "path", "queryName"), ""))
    with pytest.raises(OptionError, match="unknown option 'topics'"):
        check_names({"topics": "t"})


def test_what_says_where_to_write_is_not_about_reading() -> None:
    assert is_about_reading({"url": "u", "Subscribe": "t"})
    assert not is_about_reading({"url": "u", "subscribe": "t", "TOPIC": "t"})
    assert not is_about_reading({"url": "u"})


def test_columns_may_be_named_in_any_case_and_order() -> None:
    options = Options.parse({**BASE, "columns": "Offset, timestamptype,deliverat"})
    assert options.columns == ("offset", "timestampType", "deliverAt")


def test_a_schema_of_the_user_is_a_projection_of_ours() -> None:
    assert columns_of(StructType().add("offset", "long").add("value", "binary")) == ("offset", "value")
    for wrong in (
        StructType().add("value", "string"),
        StructType().add("body", "binary"),
        StructType().add("offset", LongType(), nullable=False),
    ):
        with pytest.raises(OptionError, match="is none of ours"):
            columns_of(wrong)
