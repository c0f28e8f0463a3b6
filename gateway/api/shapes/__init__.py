"""What a caller may send: every request body and socket command as a struct, with its limits beside its fields.

A surface reads JSON and calls `load`; what comes back has been checked to the last field. The JSON Schemas of the two
API documents are made of the same structs (`schema_of`), so a limit is written once. Pure.
"""
