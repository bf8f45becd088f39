"""What Kafka Connect's answers mean, asked of a real server that gives them."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, HTTPServer

import pytest

from viewkeeper.capture.connect_rest import ConnectRest, Refused, Unanswered


class Errors(BaseHTTPRequestHandler):
    """Says 404 to everything: as the API does, or as the server does while it starts or ends and has no API."""

    said = b""

    def do_GET(self) -> None:
        self.send_response(404)
        self.end_headers()
        self.wfile.write(self.said)

    def log_message(self, *_: object) -> None:
        pass


@pytest.fixture
def rest() -> Iterator[ConnectRest]:
    with HTTPServer(("127.0.0.1", 0), Errors) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        yield ConnectRest(server.server_port, "user", "password")
        server.shutdown()
        thread.join()


def test_what_the_api_refuses_is_refused_for_its_reason(rest: ConnectRest, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Errors, "said", b'{"error_code": 404, "message": "no such connector"}')
    with pytest.raises(Refused, match=r"^no such connector$"):
        rest.states()


def test_a_page_of_a_server_without_its_api_is_no_answer(rest: ConnectRest, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Errors, "said", b"<html><title>Error 404 Not Found</title></html>")
    with pytest.raises(Unanswered):
        rest.states()
