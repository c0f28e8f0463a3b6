"""Keys and values by the schemas of a Confluent-compatible registry: what `gateway/api/schemas.py` asks for.

    service.py       which schema, from the registry or what is kept of its answers; then the converter
    registry.py      the registry over HTTP
    kept.py          its answers, within a bound; who asks for the same waits for one answer
    converter.py     processes that convert, with bounds on their memory and time
    child.py         such a process: avro.py, json_schema.py, protobuf.py

Schemas and values are others' and may be made to harm: a few bytes of Avro stand for a list of any length, a pattern of
JSON Schema for hours, a nested message for a stack overflow. C libraries hold Python's lock meanwhile, and some abort.
So they are parsed in other processes, which the kernel ends.
"""
