"""Asynchronous operations in flight: in pipes, whose operations land in the order of their issue."""

from __future__ import annotations

from bisect import bisect_left
from collections import deque
from collections.abc import Hashable, Iterable, Iterator
from operator import itemgetter
from typing import Generic, Protocol, TypeVar


class Landing(Protocol):
    """What is in flight until it is done."""

    done: bool


Operation = TypeVar("Operation", bound=Landing)


class Pipes(Generic[Operation]):
    """The pipes that something is in flight in, in the order in which pipes were first used.

    A step costs what lands or is issued, however many pipes there have been.
    """

    def __init__(self) -> None:
        self._order: dict[Hashable, int] = {}
        self._names: dict[int, Hashable] = {}
        self._opened = 0
        self._busy: list[tuple[int, deque[Operation]]] = []
        self.in_flight = 0
        """Operations in all pipes."""

    def __len__(self) -> int:
        return len(self._busy)

    def issue(self, pipe: Hashable, operation: Operation) -> None:
        """An operation goes last into a pipe; None: into one of its own."""
        order = self._opened if pipe is None else self._order.setdefault(pipe, self._opened)
        if order == self._opened:
            self._names[order] = pipe
            self._opened += 1
        self.in_flight += 1
        at = bisect_left(self._busy, order, key=itemgetter(0))
        if at < len(self._busy) and self._busy[at][0] == order:
            self._busy[at][1].append(operation)
        else:
            self._busy.insert(at, (order, deque([operation])))

    def head(self, index: int) -> tuple[Hashable, Operation]:
        """Name (None: of its own) and next operation of the pipe at an index among the busy ones."""
        order, pipe = self._busy[index]
        return self._names[order], pipe[0]

    def operations(self) -> Iterator[Operation]:
        """All operations in flight."""
        return (operation for _, pipe in self._busy for operation in pipe)

    def take(self, index: int) -> Operation:
        """The next operation to land of the pipe at an index among the busy ones."""
        pipe = self._busy[index][1]
        operation = pipe.popleft()
        if not pipe:
            order, _ = self._busy.pop(index)
            if self._names[order] is None:
                del self._names[order]
        self.in_flight -= 1
        return operation


class Awaited(Generic[Operation]):
    """Operations that threads wait for. To ask again and again costs no more than they are."""

    def __init__(self, operations: Iterable[Operation]) -> None:
        self._operations = tuple(operations)
        self._left = list(self._operations)[::-1]

    def __iter__(self) -> Iterator[Operation]:
        return iter(self._operations)

    def landed(self) -> bool:
        """Whether all of them have."""
        while self._left and self._left[-1].done:
            self._left.pop()
        return not self._left

    def __len__(self) -> int:
        """How many have not."""
        return sum(not operation.done for operation in self._left)
