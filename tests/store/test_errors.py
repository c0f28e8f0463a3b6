"""store.errors: one tree, and errors that say where."""

from __future__ import annotations

import inspect

from store import errors
from store.errors import Corrupt, StoreError


def test_every_error_of_the_store_can_be_caught_as_one() -> None:
    classes = [cls for _, cls in inspect.getmembers(errors, inspect.isclass) if cls.__module__ == errors.__name__]
    assert len(classes) > 8
    assert all(issubclass(cls, StoreError) for cls in classes)


def test_the_tree_drawn_in_the_header_is_the_tree() -> None:
    assert errors.__doc__ is not None
    for name, cls in inspect.getmembers(errors, inspect.isclass):
        if issubclass(cls, StoreError):
            assert name in errors.__doc__


def test_corrupt_names_file_and_position() -> None:
    error = Corrupt("/data/commitlog/0", 4096, "CRC does not match")
    assert str(error) == "/data/commitlog/0, position 4096: CRC does not match"
    assert (error.path, error.position, error.reason) == ("/data/commitlog/0", 4096, "CRC does not match")
