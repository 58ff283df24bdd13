"""A proxy for a store on this machine, with the latency of a distant one and a share of faults.

    python -m benchmarks.machines.slow_store 9000 [--port 9001] [--latency 0.03] [--bytes-per-second 200e6]
        [--faults 0.05]

Bytes of answers are handed on after the latency, and no faster than the limit, over all connections together. Of the
requests, a share is refused with 503, broken off, or answered with half a body, a third each. It listens on the
loopback interface alone, prints its port, and ends after `--seconds`. Another share, `--stalls`, is answered 2 s late.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import random
import re

_PIECE = 1 << 18
_REQUEST = re.compile(rb"(GET|HEAD|PUT|POST|DELETE) /")
_REFUSAL = b"<?xml version='1.0'?><Error><Code>SlowDown</Code><Message>less, please</Message></Error>"
_ANSWER = (
    b"HTTP/1.1 503 Slow Down\r\nContent-Type: application/xml\r\nContent-Length: %d\r\nConnection: close\r\n\r\n%s"
)
_CUT_AFTER = 2_000  # bytes of an answer, headers included
_STALL_SECONDS = 2.0


class SlowStore:
    """Forwards connections to a port of this machine.

    Attributes
    ----------
    requests, faults, sent_bytes : int
        How many requests came, how many of them failed here, and the bytes of answers so far.
    """

    def __init__(self, target: int, latency: float, bytes_per_second: float, faults: float, stalls: float) -> None:
        self._target = target
        self._latency = latency
        self._rate = bytes_per_second
        self._share = faults
        self._stalls = stalls
        self._chance = random.Random(0)
        self._free_at = 0.0
        self.requests = self.faults = self.sent_bytes = 0

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Forward one connection until either side closes it."""
        with contextlib.suppress(OSError):
            await asyncio.sleep(self._latency)
            above, below = await asyncio.open_connection("127.0.0.1", self._target, limit=4 * _PIECE)
            cut: list[int] = []  # the rest of a truncated answer
            pumps = [
                asyncio.create_task(self._ask(reader, below, writer, cut)),
                asyncio.create_task(self._answer(above, writer, cut)),
            ]
            try:
                await asyncio.wait(pumps, return_when=asyncio.FIRST_COMPLETED)
            finally:
                for pump in pumps:
                    pump.cancel()
                await asyncio.gather(*pumps, return_exceptions=True)
                below.close()
        writer.close()

    async def _ask(
        self, reader: asyncio.StreamReader, below: asyncio.StreamWriter, writer: asyncio.StreamWriter, cut: list[int]
    ) -> None:
        while data := await reader.read(_PIECE):
            if _REQUEST.match(data):
                self.requests += 1
                if self._chance.random() < self._share:
                    self.faults += 1
                    fault = self._chance.choice(["refused", "reset", "cut"])
                    if fault == "refused":
                        await asyncio.sleep(self._latency)
                        writer.write(_ANSWER % (len(_REFUSAL), _REFUSAL))
                        await writer.drain()
                        return
                    if fault == "reset":
                        writer.transport.abort()
                        return
                    cut.append(_CUT_AFTER)
                elif self._chance.random() < self._stalls:
                    await asyncio.sleep(_STALL_SECONDS)
            below.write(data)
            await below.drain()

    async def _answer(self, above: asyncio.StreamReader, writer: asyncio.StreamWriter, cut: list[int]) -> None:
        loop, coming = asyncio.get_running_loop(), asyncio.Queue[tuple[float, bytes]](maxsize=64)

        async def receive() -> None:
            with contextlib.suppress(OSError):  # a store that closes the connection ends the answer, too
                while data := await above.read(_PIECE):
                    await coming.put((loop.time() + self._latency, data))
            await coming.put((loop.time(), b""))

        receiving = asyncio.create_task(receive())
        try:
            while True:
                due, data = await coming.get()
                if not data:
                    return
                if cut:
                    data, cut[0] = data[: cut[0]], cut[0] - len(data)
                await self._wait(loop, due, len(data))
                writer.write(data)
                if cut and cut[0] <= 0:
                    await writer.drain()
                    return
                await writer.drain()
        finally:
            receiving.cancel()

    async def _wait(self, loop: asyncio.AbstractEventLoop, due: float, nbytes: int) -> None:
        self.sent_bytes += nbytes
        begins = max(self._free_at, due)
        self._free_at = begins + nbytes / self._rate
        # Sleeps are slightly too long; the next ones are shorter.
        if (pause := begins - loop.time()) > 0:
            await asyncio.sleep(pause)


async def _main(arguments: argparse.Namespace) -> None:
    store = SlowStore(
        arguments.target, arguments.latency, arguments.bytes_per_second, arguments.faults, arguments.stalls
    )
    server = await asyncio.start_server(store.serve, "127.0.0.1", arguments.port, limit=4 * _PIECE)
    print(server.sockets[0].getsockname()[1], flush=True)
    with contextlib.suppress(TimeoutError):
        await asyncio.wait_for(server.serve_forever(), arguments.seconds)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("target", type=int, help="port of the store")
    parser.add_argument("--port", type=int, default=0)
    parser.add_argument("--latency", type=float, default=0.03, help="seconds")
    parser.add_argument("--bytes-per-second", type=float, default=200e6)
    parser.add_argument("--faults", type=float, default=0.0, help="share of requests that fail")
    parser.add_argument("--stalls", type=float, default=0.0, help="share of requests that are answered late")
    parser.add_argument("--seconds", type=float, default=600.0)
    asyncio.run(_main(parser.parse_args()))
