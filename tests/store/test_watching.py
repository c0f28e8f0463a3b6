"""store/watching.py: whom a change wakes, and that nothing is left of who has gone."""

from __future__ import annotations

from collections.abc import Callable

from store.watching import watch


def test_each_is_called_off_by_itself_and_the_last_one_leaves_nothing() -> None:
    watching: dict[str, dict[object, Callable[[], None]]] = {}
    woken: list[int] = []
    first = watch(watching, "a", lambda: woken.append(1))
    second = watch(watching, "a", lambda: woken.append(2))
    other = watch(watching, "b", lambda: woken.append(3))
    for wake in watching["a"].values():
        wake()
    assert woken == [1, 2]
    first()
    first()
    assert (len(watching["a"]), len(watching)) == (1, 2)
    second()
    other()
    assert watching == {}
    other()
