"""Reader for asyncio, which runs a `Reader` in a thread of its own."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from types import TracebackType
from typing import TYPE_CHECKING, Any, TypeVar

from kafka_ratchet.errors import ReaderMisused
from kafka_ratchet.reader.event import Event
from kafka_ratchet.reader.reader import Reader
from kafka_ratchet.reader.transaction import Transaction

if TYPE_CHECKING:
    import pyarrow as pa

T = TypeVar("T")


class AsyncTransaction:
    """Transaction of an async reader, with awaitable statements.

    Args:
        transaction: the wrapped transaction.
        call: function that runs another function in the reader's thread.
    """

    def __init__(self, transaction: Transaction, call: Callable[..., Any]) -> None:
        self._transaction, self._call = transaction, call

    @property
    def events(self) -> list[Event]:
        """Return the records; see `Transaction.events`."""
        return self._transaction.events

    async def execute(self, statement: str, parameters: Sequence[Any] = ()) -> list[Any]:
        """Execute a statement; raises the errors of `Transaction.execute`.

        Returns:
            rows of the statement; empty for a statement without rows
        """
        found: list[Any] = await self._call(_rows, self._transaction, statement, parameters)
        return found

    async def executemany(self, statement: str, parameters: Iterable[Sequence[Any]]) -> None:
        """Execute a statement for each sequence of parameters; raises the errors of `Transaction.execute`."""
        await self._call(self._transaction.executemany, statement, list(parameters))

    async def commit(self) -> None:
        """Commit now; see `Transaction.commit`."""
        await self._call(self._transaction.commit)

    def arrow(self) -> pa.RecordBatch:
        """Return the records as an Arrow batch; see `Transaction.arrow`."""
        return self._transaction.arrow()


def _rows(transaction: Transaction, statement: str, parameters: Sequence[Any]) -> list[Any]:
    found = transaction.execute(statement, parameters)
    return found.fetchall() if getattr(found, "description", None) else []


class AsyncReader:
    """Reader for asyncio, with the rules and errors of `Reader`.

    ::

        async with AsyncReader("orders.once", store=Sqlite("bill.db"), name="billing", options=options) as reader:
            async for transaction in reader.transactions():
                for event in transaction.events:
                    await transaction.execute("insert into bill values (?, ?)", (event.key, event.value))

    Requests to Kafka and the database run in the reader's own thread, so that the event loop is never blocked.

    Args:
        arguments: positional arguments of `Reader`.
        options: keyword arguments of `Reader`.
    """

    def __init__(self, *arguments: Any, **options: Any) -> None:
        self._reader = Reader(*arguments, **options)
        self._thread: ThreadPoolExecutor | None = None

    async def _call(self, function: Callable[..., T], *arguments: Any) -> T:
        if self._thread is None:
            raise ReaderMisused("an AsyncReader is used outside 'async with'. Use it within 'async with'")
        return await asyncio.get_running_loop().run_in_executor(self._thread, partial(function, *arguments))

    async def __aenter__(self) -> AsyncReader:
        """Connect as `Reader.__enter__` does; raises its errors."""
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="ratchet-reader")
        try:
            await self._call(self._reader.__enter__)
        except BaseException:
            self._thread.submit(self._reader.close)  # it may still be connecting
            self._thread.shutdown(wait=False)
            raise
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._reader.stop()  # the thread may wait for a record
        try:
            await self._call(self._reader.close)
        finally:
            if self._thread is not None:
                self._thread.shutdown(wait=False)
                self._thread = None

    async def transactions(self, *, until_end: bool = False) -> AsyncIterator[AsyncTransaction]:
        """Yield transactions; each commits when the next is requested, as in `Reader.transactions`."""
        found = await self._call(partial(self._reader.transactions, until_end=until_end))
        try:
            while (transaction := await self._call(next, found, None)) is not None:
                yield AsyncTransaction(transaction, self._call)
        finally:
            if self._thread is not None:  # abandoned loop: roll back in the reader's thread, not in the loop's
                self._thread.submit(found.close)  # runs after a cancelled fetch
