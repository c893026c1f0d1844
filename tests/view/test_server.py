"""Who gets an answer, and what happens to a server that is asked nonsense."""

import http.client
import json
import signal
import socket
import subprocess
import sys
import threading
import urllib.request
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pytest

from conceptloader.cli import main
from conceptloader.errors import ConfigError
from conceptloader.viewer.server import Server
from conceptloader.viewer.source import Looked
from tests.raises import raises


def get(page: str, path: str, method: str = "GET", **headers: str) -> tuple[int, bytes]:
    """Status and body of a request to the host of a page, for the path as it is."""
    connection = http.client.HTTPConnection(urlsplit(page).netloc, timeout=20)
    connection.request(method, path, headers=headers)
    answer = connection.getresponse()
    return answer.status, answer.read()


def message(body: bytes) -> str:
    found: str = json.loads(body)["error"]["message"]
    return found


def test_only_with_the_token(page: str) -> None:
    path = urlsplit(page).path
    assert get(page, path)[0] == 200
    others = (f"{path[:-2]}/api/about", f"{path[:-1]}x/api/about", "/%00/", "/%C3%A9/")
    for wrong in ("/", "/api/about", "/x/", "//", *others):
        status, body = get(page, wrong)
        assert status == 403, wrong
        assert "expected the address printed" in message(body)


def test_a_name_that_others_let_point_here_is_refused(page: str) -> None:
    """Those of this machine are answered at any port, as behind ssh -L."""
    path = urlsplit(page).path + "api/about"
    for host in ("evil.example", "127.0.0.1.evil.example", "evil.example:80", "", "[", "10.0.0.1", "0.0.0.0"):
        status, body = get(page, path, Host=host)
        assert status in (400, 403), body
        assert "title" not in json.loads(body)
    for host in ("127.0.0.1:1", "localhost", "localhost:9999", "LOCALHOST", "[::1]:80", "127.8.9.1"):
        assert get(page, path, Host=host)[0] == 200


def test_no_other_file_is_there(page: str) -> None:
    wrong = ("../server.py", "%2e%2e/server.py", "static/../../server.py", "nothing", "api/", "api/__class__")
    for path in (*wrong, "app.js/"):
        status, body = get(page, urlsplit(page).path + path)
        assert status == 404
        assert message(body) == "found no such page"


def test_it_only_answers_questions(page: str) -> None:
    for method in ("POST", "PUT", "DELETE", "OPTIONS"):
        assert get(page, urlsplit(page).path, method)[0] == 501


NONSENSE = [
    "window?i=%C3%A9", "window?i=1e3", "window?i=99999999999999999999999", "window?i=%00", "document?n=-1",
    "document?from=10000000", "seen", "seen?i=1,,2", "seen?d=web&i=99999999", "step?n=9007199254740992",
    "window?n=18446744073709551616", "mixture?n=x", "concept", "concept?c=9999999999", "check?d=..",
    "stats?d=%F0%9F%98%80",
]  # fmt: skip


def test_nonsense_is_named_and_the_server_lives_on(page: str) -> None:
    for query in NONSENSE:
        status, body = get(page, f"{urlsplit(page).path}api/{query}")
        assert status == 400, body
        assert json.loads(body)["error"]["kind"] == "ConfigError"
    for query in ("document", "seen?i="):
        assert get(page, f"{urlsplit(page).path}api/{query}")[0] in (200, 400)
    assert get(page, urlsplit(page).path + "api/about")[0] == 200


def test_a_defect_is_told_as_one(page: str, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture) -> None:
    def broken(*_: Any) -> None:
        raise ZeroDivisionError

    monkeypatch.setattr("conceptloader.viewer.server.PAGES", {"about": broken})
    status, body = get(page, urlsplit(page).path + "api/about")
    assert status == 500
    assert "this is a defect of conceptloader" in message(body)
    assert "ZeroDivisionError" in caplog.text
    assert urlsplit(page).path.strip("/") not in caplog.text, "the token is in no log"


def test_many_at_once_and_some_that_hang_up(page: str) -> None:
    path = urlsplit(page).path + "api/window?d=web&i={}"
    for _ in range(20):
        with socket.create_connection((urlsplit(page).hostname, urlsplit(page).port)) as connection:
            connection.sendall(b"GET " + path.format(1).encode() + b" HTTP/1.1\r\nHost: localhost\r\n\r\n")
    found: list[int] = []
    threads = [threading.Thread(target=lambda k=k: found.append(get(page, path.format(k))[0])) for k in range(16)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert found == [200] * 16


def test_an_address_where_nobody_can_listen(looked: Looked) -> None:
    with (
        Server(looked) as server,
        raises(ConfigError, found="an address that cannot be listened at", fix="pass another --port"),
    ):
        Server(looked, port=server.server_address[1])
    with raises(ConfigError, found="cannot be listened at"):
        Server(looked, "192.0.2.1")
    with raises(ConfigError, found="cannot be listened at"):
        Server(looked, port=70_000)


def test_other_machines_only_if_asked_for(looked: Looked) -> None:
    with Server(looked, "0.0.0.0") as server:
        assert server.knows("10.0.0.1:80")
        assert server.knows(socket.gethostname())
        assert not server.knows("evil.example")
    with Server(looked) as server:
        assert not server.knows("10.0.0.1:80")
        assert not server.knows("")


@pytest.mark.parametrize("what", ["run.yaml", "web"])
def test_the_command_prints_the_address_and_ends_with_ctrl_c(folder: Path, what: str) -> None:
    command = [sys.executable, "-m", "conceptloader", "viewer", str(folder / what)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        line = process.stdout.readline()
        title, _, url = line.strip().partition(": ")
        assert title == what
        with urllib.request.urlopen(f"{url}api/about") as answer:
            assert json.load(answer)["title"] == what
        process.send_signal(signal.SIGINT)
        assert process.wait(20) == 0
        assert process.stderr is not None
        assert process.stderr.read() == ""


def test_usage(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    run, web, nowhere = (str(folder / name) for name in ("run.yaml", "web", "nowhere"))
    for arguments, expected in (
        ([web, "--run-log", str(folder / "checkpoints")], "found a dataset, which has no steps"),
        ([nowhere], "nowhere"),
        ([run, "--run-log", nowhere], "found no start of a run"),
        ([run, "--host", "nowhere.invalid"], "cannot be listened at"),
    ):
        assert main(["viewer", *arguments]) in (1, 2)
        assert expected in capsys.readouterr().err
