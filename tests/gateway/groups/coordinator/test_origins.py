"""gateway.groups.coordinator.origins: which topics dead letters came from, noted before they are written."""

from __future__ import annotations

from gateway.groups.machines.copies import dead_letter_topic
from tests.gateway.groups.coordinator.world import World, wanting, world

G = "billing"


async def reject(made: World, topic: str, value: bytes) -> None:
    """One record of this topic becomes a dead letter of the group."""
    await made.send(value, topic=topic)
    (message,) = (await made.groups.receive(G, wanting(topic))).messages
    await made.groups.reject(G, [message.receipt], "bad")


async def test_a_topic_is_named_before_its_first_dead_letter_can_be_read() -> None:
    async with world() as made:
        origins = made.groups.dead_letters.origins
        await made.topic("bills", 1)
        seen: list[tuple[set[str], int]] = []

        async def written() -> int:
            topic = dead_letter_topic(G)
            return len(await made.records(topic)) if topic in made.routes else 0

        counts: list[int] = []
        origins.on_change = lambda: seen.append((set(origins.of(G) or ()), len(counts)))
        assert set(origins.of(G) or ()) == set()
        for topic in ("orders", "bills", "orders"):
            await reject(made, topic, topic.encode())
            counts.append(await written())
        assert counts == [1, 2, 3]
        # Told when the first and the second topic came, each before its letter was there; never for one that is known.
        assert seen == [({"orders"}, 0), ({"orders", "bills"}, 1)]


async def test_a_start_reads_them_and_until_then_they_are_unknown() -> None:
    async with world() as made:
        await made.topic("bills", 1)
        await reject(made, "orders", b"1")
        await reject(made, "bills", b"2")
        await made.stop()
        await made.start()
        origins = made.groups.dead_letters.origins
        assert origins.of(G) is None
        assert origins.of("another") == ()
        changes: list[None] = []
        origins.on_change = lambda: changes.append(None)
        await origins.read()
        assert set(origins.of(G) or ()) == {"orders", "bills"}
        assert len(changes) == 1


async def test_a_group_that_is_deleted_and_comes_again_has_its_old_letters_still() -> None:
    async with world() as made:
        await made.topic("bills", 1)
        await reject(made, "orders", b"1")
        await made.groups.delete(G)
        await made.stop()
        await made.start()
        await made.groups.dead_letters.origins.read()
        await reject(made, "bills", b"2")
        assert set(made.groups.dead_letters.origins.of(G) or ()) == {"orders", "bills"}


async def test_letters_that_do_not_say_it_stay_unknown() -> None:
    async with world() as made:
        await reject(made, "orders", b"1")
        await made.send(b"no copy of ours", topic=dead_letter_topic(G))
        await made.stop()
        await made.start()
        await made.groups.dead_letters.origins.read()
        assert made.groups.dead_letters.origins.of(G) is None
