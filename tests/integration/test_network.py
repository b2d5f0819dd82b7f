"""The way to a model: proxies and certificates that the environment names, and what is said when it is blocked."""

import socket
import socketserver
import ssl
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import trustme

from memtrials.llm.engine import ATTEMPTS, ChatModel
from support.model_server import KEY, ModelServer, Script, always, drop, ok
from support.trials import records, stage

HOST = "models.invalid"
"""A name that no server outside has."""
ALL = ("--system", "bm25")
ONE = ("--system", "bm25", "--task", "2/query")


@pytest.fixture(autouse=True)
def _own_network(monkeypatch: pytest.MonkeyPatch) -> None:
    """No proxy or certificates but the test's; HOST is this machine; tries follow each other at once."""
    for name in ("http_proxy", "https_proxy", "all_proxy", "no_proxy", "ssl_cert_file", "ssl_cert_dir"):
        monkeypatch.delenv(name, raising=False)
        monkeypatch.delenv(name.upper(), raising=False)
    look_up = socket.getaddrinfo

    def here(host: Any, *arguments: Any, **named: Any) -> Any:
        return look_up("127.0.0.1" if host == HOST else host, *arguments, **named)

    monkeypatch.setattr(socket, "getaddrinfo", here)
    monkeypatch.setitem(ChatModel.__init__.__kwdefaults__, "pause", 0.0)


@pytest.fixture
def server() -> Iterator[ModelServer]:
    """A model that answers everything."""
    with ModelServer(always(ok("Use tamari."))) as running:
        yield running


@pytest.fixture
def proxy() -> Iterator[ModelServer]:
    """A proxy that answers in the place of HOST."""
    with ModelServer(always(ok("Use tamari."))) as running:
        running.paths = (f"http://{HOST}/v1/chat/completions",)
        yield running


def answer(trials: Path, base_url: str, *arguments: str, code: int = 0, **env: str) -> dict[str, Any]:
    """`answer --reader model-a` with the model at `base_url`."""
    env = {"LLM_BASE_URL": base_url, "LLM_API_KEY": KEY, **env}
    return stage(trials, "answer", "--reader", "model-a", *arguments, code=code, env=env)


def port(server: ModelServer) -> int:
    return int(server.url.removesuffix("/v1").rpartition(":")[2])


# --- proxies ----------------------------------------------------------------------------------------------------


@pytest.mark.filterwarnings("ignore:.*(BasicAuth|proxy_auth):DeprecationWarning")  # how the SDK tells aiohttp
@pytest.mark.parametrize(("login", "sent"), [("", None), ("me:pass@", "Basic bWU6cGFzcw==")])
def test_http_goes_through_the_proxy(fetched: Path, proxy: ModelServer, login: str, sent: str | None) -> None:
    at = f"http://{login}127.0.0.1:{port(proxy)}"
    assert answer(fetched, f"http://{HOST}/v1", *ALL, HTTP_PROXY=at)["done"] == 16
    assert [request.path for request in proxy.requests] == 16 * list(proxy.paths)
    assert {request.headers.get("proxy-authorization") for request in proxy.requests} == {sent}
    assert {request.headers["authorization"] for request in proxy.requests} == {f"Bearer {KEY}"}


def test_no_proxy_names_what_is_asked_directly(fetched: Path, proxy: ModelServer, server: ModelServer) -> None:
    at = f"http://127.0.0.1:{port(proxy)}"
    answer(fetched, f"http://{HOST}:{port(server)}/v1", *ALL, HTTP_PROXY=at, NO_PROXY=f"example.org,{HOST}")
    assert (len(server.requests), len(proxy.requests)) == (16, 0)


@pytest.mark.parametrize("host", ["127.0.0.1", "localhost"])
def test_no_proxy_leads_to_this_machine(fetched: Path, proxy: ModelServer, server: ModelServer, host: str) -> None:
    at = f"http://127.0.0.1:{port(proxy)}"
    answer(fetched, f"http://{host}:{port(server)}/v1", *ALL, HTTP_PROXY=at, ALL_PROXY=at)
    assert (len(server.requests), len(proxy.requests)) == (16, 0)


# --- certificates -----------------------------------------------------------------------------------------------


class TlsServer(ModelServer):
    """A model behind TLS, with a certificate for HOST from an authority that nobody else knows."""

    def __init__(self, script: Script, authority: trustme.CA) -> None:
        super().__init__(script)
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        authority.issue_cert(HOST).configure_cert(context)
        self._http.socket = context.wrap_socket(self._http.socket, server_side=True, do_handshake_on_connect=False)


class Tunnel(socketserver.ThreadingTCPServer):
    """A proxy that connects whoever asks to one server. heads: what it could read."""

    daemon_threads = True
    block_on_close = False

    def __init__(self, target: int) -> None:
        super().__init__(("127.0.0.1", 0), _Tunnelled)
        self.target = target
        self.heads: list[bytes] = []

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server_address[1]}"


class _Tunnelled(socketserver.BaseRequestHandler):
    def handle(self) -> None:
        assert isinstance(self.server, Tunnel)
        head = b""
        while not head.endswith(b"\r\n\r\n"):
            head += self.request.recv(1)
        self.server.heads.append(head)
        with socket.create_connection(("127.0.0.1", self.server.target)) as beyond:
            self.request.sendall(b"HTTP/1.1 200 Connection established\r\n\r\n")
            back = threading.Thread(target=_copy, args=(beyond, self.request), daemon=True)
            back.start()
            _copy(self.request, beyond)
            back.join()


def _copy(source: socket.socket, target: socket.socket) -> None:
    try:
        while some := source.recv(65_536):
            target.sendall(some)
        target.shutdown(socket.SHUT_WR)
    except OSError:
        """One of the two is gone, and so is the connection."""


@pytest.fixture(scope="module")
def authority() -> trustme.CA:
    return trustme.CA()


@pytest.fixture
def secure(authority: trustme.CA) -> Iterator[TlsServer]:
    with TlsServer(always(ok("Use tamari.")), authority) as running:
        yield running


@pytest.fixture
def certificates(authority: trustme.CA, tmp_path: Path) -> str:
    """A file with the authority's certificate."""
    path = tmp_path / "authority.pem"
    authority.cert_pem.write_to_path(path)
    return str(path)


def test_an_authority_of_ones_own(fetched: Path, secure: TlsServer, certificates: str) -> None:
    url = f"https://{HOST}:{port(secure)}/v1"
    assert answer(fetched, url, *ALL, SSL_CERT_FILE=certificates)["done"] == 16
    assert len(secure.requests) == 16


def test_an_unknown_authority_is_not_trusted(fetched: Path, secure: TlsServer) -> None:
    answer(fetched, f"https://{HOST}:{port(secure)}/v1", *ONE, code=1)
    (failure,) = records(fetched, "failure")
    assert (failure["class"], failure["body"]["cause"]) == ("transient", "service")
    assert "no answer (SSLCertVerificationError)" in failure["body"]["message"]
    assert not secure.requests


def test_https_goes_through_the_proxys_tunnel(fetched: Path, secure: TlsServer, certificates: str) -> None:
    with Tunnel(port(secure)) as tunnel:
        threading.Thread(target=tunnel.serve_forever, args=(0.02,), daemon=True).start()
        answer(fetched, f"https://{HOST}/v1", *ALL, HTTPS_PROXY=tunnel.url, SSL_CERT_FILE=certificates)
        tunnel.shutdown()
    assert len(secure.requests) == 16
    assert {head.split(b"\r\n")[0] for head in tunnel.heads} == {f"CONNECT {HOST}:443 HTTP/1.1".encode()}
    assert KEY.encode() not in b"".join(tunnel.heads)


# --- connections that fail --------------------------------------------------------------------------------------


def test_a_closed_connection_is_called_so(fetched: Path, server: ModelServer) -> None:
    server.script = always(drop())
    answer(fetched, server.url, *ONE, code=1)
    (failure,) = records(fetched, "failure")
    assert failure["class"] == "transient"
    assert failure["body"]["message"].endswith("no answer (ServerDisconnectedError)")
    assert failure["body"]["attempts"] == len(server.requests) == ATTEMPTS


def test_a_refused_connection_is_called_so(fetched: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as listening:
        unused = listening.getsockname()[1]
    answer(fetched, f"http://127.0.0.1:{unused}/v1", *ONE, code=1)
    (failure,) = records(fetched, "failure")
    assert failure["class"] == "transient"
    assert failure["body"]["message"].endswith("no answer (ConnectionRefusedError)")
