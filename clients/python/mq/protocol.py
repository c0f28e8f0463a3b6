"""One conversation with the server over as many sockets as it takes: frames in, frames out. Pure: the socket, the clock
and chance are the caller's (mq/connection.py).

    connecting ── hello answered ──> open ── lost ──> waiting ── after wait_s ──> connecting
        └── refused, closed for good, or close() ──> closed

It says hello, resumes the session, matches answers to commands, passes pushes to the subscriptions they are of, and
decides whether and when there is to be another connection.

Invariants
    K1  a command is settled exactly once: by its answer, by ConnectionLost, or by what closed the conversation
    K2  a command that was not answered when a connection went is sent again on the next, unless its sender said that it
        must not be repeated: then it fails with ConnectionLost
    K3  on a new connection, subscriptions are attached before any other command is sent
    K4  an answer is dealt with before the next frame is looked at: what follows a `subscribe` or `seek` often comes in
        the same packet
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Literal, Protocol, TypeAlias

from mq.clock import Clock
from mq.errors import Closed, ConnectionLost, MqError, Refused, Undecodable
from mq.frames import Frame, Limits, State, read_binary, read_text, write_text

ConnectionState: TypeAlias = Literal["connecting", "open", "waiting", "closed"]
Outgoing: TypeAlias = tuple[bytes, bool]
"""A frame to be sent, and whether it is a binary one."""

FIRST_WAIT_S = 0.25
LONGEST_WAIT_S = 30.0
STABLE_S = 5.0
"""A connection that lasted this long was a good one: the next wait is a short one again."""
PING_S_MIN = 0.1

TAKEN_OVER = 4009
FOR_GOOD = 4500
CANNOT_RESUME = 40961


def wait_s(failures: int, random: float) -> float:
    """How long to wait before the next connection: anything from 0 to a bound that doubles with each failure, 0.5 s to
    30 s, evenly spread ("full jitter"), so that the clients of a restarted server do not all come back at once.
    `random`: from 0 to 1."""
    return random * min(LONGEST_WAIT_S, FIRST_WAIT_S * 2.0 ** min(failures, 20))


def may_reconnect(code: int) -> bool:
    """Whether a connection that was closed with this code may be tried again. 1002, 1003, 1007 and 1009 are about what
    this client sent: it would send the same again."""
    return code < FOR_GOOD and code not in (1002, 1003, 1007, 1009)


class Follower(Protocol):
    """Whoever follows a subscription over connections."""

    sub: str
    seen: int
    """The last frame taken in."""

    def attach(self, state: State | None) -> None:
        """There is a new connection. `state`: what the server kept of the subscription; None: nothing, subscribe
        again."""
        ...

    def push(self, frame: Frame) -> None:
        """A frame of the subscription. Raises Undecodable, which ends the conversation."""
        ...

    def ended(self, error: Exception) -> None:
        """No frame will follow."""
        ...


class Command:
    """One command. `encode` makes its frame, given its id; `answered` and `failed` are called once, either of them."""

    __slots__ = ("answered", "encode", "failed", "is_repeatable", "is_sent")

    def __init__(
        self,
        encode: Callable[[int], Outgoing],
        answered: Callable[[Frame], object],
        failed: Callable[[Exception], object],
        *,
        repeatable: bool = True,
    ) -> None:
        self.encode = encode
        self.answered = answered
        self.failed = failed
        self.is_repeatable = repeatable
        self.is_sent = False


class Conversation:
    """The state of it. What is to be sent is appended to `out`, and `wake` called; the caller takes it from there."""

    def __init__(
        self,
        clock: Clock,
        *,
        name: str | None = None,
        random: Callable[[], float],
        wake: Callable[[], object],
        told: Callable[[ConnectionState, Exception | None], object],
        renew: Callable[[], object],
    ) -> None:
        """`told`: the state has changed, and why. `renew`: the rights end soon; `auth` with a new token is due."""
        self.state: ConnectionState = "connecting"
        self.out: list[Outgoing] = []
        self.limits = Limits()
        self.followers: dict[str, Follower] = {}
        self._left: dict[str, int] = {}
        """What those had seen that ended while there was no connection: the session still has them."""
        self.error: Exception | None = None
        """What closed it."""
        self.lost_at_s = float("-inf")
        self.wait_s = 0.0
        """How long to wait before the next connection."""
        self.grace_s = 15.0
        self.ping_s = 25.0
        self.clock_ahead_ms = 0
        """The server's clock less ours, as far as pongs tell."""
        self.clock = clock
        self._name = name
        self._random = random
        self._wake = wake
        self._told = told
        self._renew = renew
        self._pending: dict[int, Command] = {}
        self._next_id = 1
        self._session: str | None = None
        self._failures = 0
        self._opened_at_s: float | None = None
        self._reconnect_after_s = 0.0
        self._is_leaving = False  # goaway: nothing more is sent on this connection
        self._heard_at_s = 0.0

    @property
    def is_sending(self) -> bool:
        """Whether a command that is submitted now goes out at once."""
        return self.state == "open" and not self._is_leaving

    # ------------------------------------------------------------------------------------------------ for the socket

    def opened(self) -> None:
        """There is a socket: say hello."""
        hello: dict[str, object] = {"op": "hello", "binary": True}
        if self._name is not None:
            hello["client"] = self._name
        if self._session is not None:
            hello["resume"] = self._session
            hello["seen"] = {**self._left, **{follower.sub: follower.seen for follower in self.followers.values()}}
        self._heard_at_s = self.clock.monotonic_s()
        command = Command(_plain(hello), self._welcomed, self._not_welcomed, repeatable=False)
        self._transmit(self._register(command), command)

    def received_text(self, data: bytes | str) -> None:
        """A text frame. Raises Undecodable: then call `close`, as it is not known what the server meant."""
        self._heard_at_s = self.clock.monotonic_s()
        self._received(read_text(data))

    def received_binary(self, data: bytes) -> None:
        """A binary frame. Raises Undecodable: then call `close`."""
        self._heard_at_s = self.clock.monotonic_s()
        self._received(read_binary(data))

    def watch(self) -> float:
        """Ask for a sign of life if nothing was heard for a while; call again after the seconds returned.

        Raises ConnectionLost when the peer must be taken for dead: then call `lost` with it.
        """
        silent_s = self.clock.monotonic_s() - self._heard_at_s
        if silent_s > 2 * self.ping_s:
            raise ConnectionLost(f"nothing was heard from the server for {silent_s:.1f} s")
        if silent_s > self.ping_s / 2:
            self.tell({"op": "ping"})
        return self.ping_s / 2

    def closed(self, code: int, reason: str = "") -> None:
        """The server has closed the socket."""
        told = f"{code} ({reason})" if reason else str(code)
        if code == TAKEN_OVER:
            self._session = None  # two clients that resume one session would throw each other out for ever
        if may_reconnect(code):
            self.lost(ConnectionLost(f"the connection was closed with {told}"))
        else:
            self.close(Closed(f"the server closed the connection with {told}; it must not be opened again", code))

    def lost(self, error: Exception) -> None:
        """The socket is gone, or could not be had. Afterwards dial again after `wait_s`, unless the state is closed."""
        if self.error is not None:
            return
        self.out.clear()
        if self.state == "open":
            self.lost_at_s = self.clock.monotonic_s()
        for id_, command in list(self._pending.items()):
            if command.is_sent and not command.is_repeatable:
                del self._pending[id_]
                command.failed(error if isinstance(error, ConnectionLost) else ConnectionLost(str(error)))
            command.is_sent = False
        opened_at_s, self._opened_at_s = self._opened_at_s, None
        was_stable = opened_at_s is not None and self.clock.monotonic_s() - opened_at_s > STABLE_S
        self._failures = 1 if was_stable else self._failures + 1
        self.wait_s = wait_s(self._failures, self._random()) + self._reconnect_after_s
        self._reconnect_after_s = 0.0
        self._become("waiting", error)

    def dialling(self) -> None:
        """Another connection is being opened."""
        self._become("connecting", None)

    # --------------------------------------------------------------------------------------------- for the application

    def submit(self, command: Command) -> None:
        """Send a command, now or as soon as there is a connection."""
        if self.error is not None:
            command.failed(self.error)
            return
        id_ = self._register(command)
        if self.is_sending:
            self._transmit(id_, command)

    def request(
        self,
        fields: dict[str, object],
        answered: Callable[[Frame], object],
        failed: Callable[[Exception], object],
        *,
        repeatable: bool = True,
    ) -> None:
        """Submit a command of these fields."""
        self.submit(Command(_plain(fields), answered, failed, repeatable=repeatable))

    def tell(self, fields: dict[str, object]) -> None:
        """Send a command that needs no answer; dropped when there is no connection."""
        if self.state == "open":
            self.out.append((write_text(fields), False))
            self._wake()

    def leave(self, follower: Follower) -> bool:
        """End a subscription here. Whether the server is to be told now; else the next connection tells it."""
        if self.followers.pop(follower.sub, None) is None:
            return False
        if not self.is_sending:
            self._left[follower.sub] = follower.seen
        return self.is_sending

    def follow(self, follower: Follower) -> None:
        """Begin a subscription: now, or with the next connection."""
        if self.error is not None:
            follower.ended(self.error)
            return
        self.followers[follower.sub] = follower
        if self.is_sending:
            follower.attach(None)

    def close(self, error: Exception | None = None) -> None:
        """End for good: nothing is sent any more, and every command that was not answered fails."""
        if self.error is not None:
            return
        reason = error or Closed("the client was closed")
        self.error = reason
        self.out.clear()
        pending, self._pending = list(self._pending.values()), {}
        for command in pending:
            command.failed(reason)
        followers, self.followers = list(self.followers.values()), {}
        for follower in followers:
            follower.ended(reason)
        self._become("closed", error)

    # --------------------------------------------------------------------------------------------------------- frames

    def _received(self, frame: Frame) -> None:
        if frame.id is not None:
            command = self._pending.pop(frame.id, None)
            if command is None:
                return
            if not frame.ok:
                command.failed(frame.refusal())
                return
            command.is_sent = False
            try:
                command.answered(frame)
            except Exception as error:
                command.failed(error)
                raise
        elif frame.sub is not None:
            follower = self.followers.get(frame.sub)
            if follower is None:
                return  # of a subscription that was given up
            if frame.op == "error":
                del self.followers[frame.sub]
                follower.ended(frame.refusal())
            else:
                follower.push(frame)
        elif frame.op == "goaway":
            self._is_leaving = True
            self._reconnect_after_s = max(0.0, frame.reconnect_after_ms / 1000)
        elif frame.op == "auth_expiring":
            self._renew()
        elif frame.op == "pong":
            self.clock_ahead_ms = frame.ts - self.clock.now_ms()
        # Errors of commands without an id are of `tell`, whose effect no caller waits for.

    def _welcomed(self, welcome: Frame) -> None:
        if welcome.session is None:
            raise Undecodable("an answer to hello without a session: is this an mq server?")
        self._session = welcome.session
        self.limits = welcome.limits or self.limits
        self.ping_s = max(PING_S_MIN, welcome.ping_ms / 1000)
        self.grace_s = welcome.grace_ms / 1000
        self._opened_at_s = self.clock.monotonic_s()
        self._is_leaving = False
        self.state = "open"
        kept = welcome.subs if welcome.resumed else {}
        for follower in list(self.followers.values()):
            ended = welcome.ended.get(follower.sub) if welcome.resumed else None
            if ended is not None and ended.get("error_code") != CANNOT_RESUME:
                del self.followers[follower.sub]
                follower.ended(_refusal_of(ended))
            else:
                follower.attach(kept.get(follower.sub))  # K3
        for id_, command in list(self._pending.items()):
            if not command.is_sent:
                self._transmit(id_, command)
        for sub in kept.keys() - self.followers.keys():  # behind what is still to be acked there
            self.tell({"op": "unsubscribe", "sub": sub})
        self._left.clear()
        self.tell({"op": "ping"})  # for the difference of the clocks
        self._told("open", None)

    def _not_welcomed(self, error: Exception) -> None:
        if isinstance(error, Refused) and self.error is None:
            if error.retriable:
                self.lost(error)
            else:
                self.close(Closed(f"the server refused this client: {error}", error.code))

    # ------------------------------------------------------------------------------------------------------- commands

    def _register(self, command: Command) -> int:
        id_ = self._next_id
        self._next_id += 1
        self._pending[id_] = command
        return id_

    def _transmit(self, id_: int, command: Command) -> None:
        try:
            outgoing = command.encode(id_)
        except Exception as error:
            del self._pending[id_]
            command.failed(error)
            return
        command.is_sent = True
        self.out.append(outgoing)
        self._wake()

    def _become(self, state: ConnectionState, reason: Exception | None) -> None:
        if state == self.state and reason is None:
            return
        self.state = state
        self._told(state, reason)


def _plain(fields: dict[str, object]) -> Callable[[int], Outgoing]:
    return lambda id_: (write_text({"id": id_, **fields}), False)


def _refusal_of(fields: dict[str, object]) -> MqError:
    code, message = fields.get("error_code"), fields.get("message")
    return Refused(str(message or "refused"), code if isinstance(code, int) else 500)
