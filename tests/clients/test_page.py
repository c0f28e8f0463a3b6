"""docs/clients.md says what is so: every behaviour is shown by tests that exist, in both clients."""

from __future__ import annotations

from tests.clients.behaviours import JS, PAGE, behaviours, page, python_tests

COUNT = 49


def test_the_list_is_whole() -> None:
    assert [one["number"] for one in behaviours()] == list(range(1, COUNT + 1))


def test_every_behaviour_has_a_test_of_the_python_client() -> None:
    assert sorted(python_tests()) == list(range(1, COUNT + 1))


def test_every_behaviour_has_a_test_of_the_javascript_client_that_exists_or_says_how_that_differs() -> None:
    for one in behaviours():
        assert bool(one["js"]) != ("differs" in one), one["number"]
        for name in one["js"]:
            path, _, title = name.partition(": ")
            assert title in (JS / path).read_text(), f"{one['number']}: there is no test {title!r} in {path}"


def test_the_page_is_as_the_tests_are() -> None:
    assert PAGE.read_text() == page(), "run: make clients"
