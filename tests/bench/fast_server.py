"""A chat model that costs next to nothing to ask, in a process of its own: `python fast_server.py` prints its port.

The first part of the path is how long it takes: http://127.0.0.1:PORT/200/v1 replies after 200 ms. It prints a line
when its first request is there, and one for every thousand more.
"""

import asyncio
import json

COMPLETION = {
    "id": "chatcmpl-1",
    "object": "chat.completion",
    "created": 1_795_996_800,
    "model": "fast",
    "choices": [
        {"index": 0, "message": {"role": "assistant", "content": "Use tamari."}, "finish_reason": "stop"},
    ],
    "usage": {"prompt_tokens": 100, "completion_tokens": 20, "total_tokens": 120},
}
BODY = json.dumps(COMPLETION).encode()
REPLY = b"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nContent-Length: %d\r\n\r\n%b" % (len(BODY), BODY)
END, LENGTH = b"\r\n\r\n", b"content-length:"


class Connection(asyncio.Protocol):
    """One client, which waits for each reply before it asks again."""

    requests = 0

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self.transport = transport
        self.received = bytearray()

    def data_received(self, data: bytes) -> None:
        self.received += data
        head, end, body = self.received.partition(END)
        if not end or len(body) < int(head.lower().partition(LENGTH)[2].partition(b"\r\n")[0]):
            return
        if Connection.requests % 1000 == 0:
            print(Connection.requests, flush=True)
        Connection.requests += 1
        seconds = int(head.split(b"/")[1]) / 1000
        self.received.clear()
        asyncio.get_running_loop().call_later(seconds, self.transport.write, REPLY)


async def main() -> None:
    """Serve until the process is ended."""
    server = await asyncio.get_running_loop().create_server(Connection, "127.0.0.1", 0, backlog=1024)
    print(server.sockets[0].getsockname()[1], flush=True)
    await server.serve_forever()


if __name__ == "__main__":
    asyncio.run(main())
