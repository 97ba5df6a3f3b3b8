"""`dse dashboard`: answers of optuna-dashboard, and who may ask."""

import json
import socket
import struct
import time
from threading import Thread
from typing import Any
from wsgiref.simple_server import make_server
from wsgiref.util import setup_testing_defaults

import pytest

from dse import DseError, Space, Study
from dse.cli.commands import studies as serving
from dse.storage.dashboard import TOKEN, dashboard, private
from tests.support.commands import stderr_of

pytest.importorskip("optuna_dashboard", reason="needs the `dashboard` extra")


@pytest.fixture(scope="module")
def study(searched, small_space):
    """A study with infeasible designs that no feasible one beats."""
    return searched(Space.from_text(small_space), 48, sampler="random")


def told(application: Any, path: str) -> Any:
    """The object that the dashboard answers to a browser."""
    return json.loads(asked(application, "GET", path)[2])


def test_its_front_is_the_feasible_one_and_grows(study):
    application = dashboard(study.storage)
    [listed] = told(application, "/api/studies")["study_summaries"]
    assert listed["study_name"] == "small"
    shown = told(application, f"/api/studies/{listed['study_id']}")
    assert not study.table.feasible.all()
    assert {trial["number"] for trial in shown["best_trials"]} == {*study.pareto_front()["trial"]}
    states = {trial["number"]: trial["state"] for trial in shown["trials"]}
    feasible = dict(zip(study.table.numbers.tolist(), study.table.feasible.tolist(), strict=True))
    assert states == {number: "Complete" if kept else "Pruned" for number, kept in feasible.items()}


def test_numbers_of_a_trial_are_columns_that_can_be_sorted(study):
    shown = told(dashboard(study.storage), "/api/studies/1")
    columns = {column["key"]: column["sortable"] for column in shown["union_user_attrs"]}
    assert columns["bubble_time_s"]
    assert columns["dp"]
    assert columns["margin_fits_bytes"]
    row = study.trials().iloc[5]
    attributes = {pair["key"]: pair["value"] for pair in shown["trials"][5]["user_attrs"]}
    assert float(attributes["margin_fits_bytes"]) == row["margin_fits_bytes"]


def test_objectives_have_units_that_people_use(study):
    shown = told(dashboard(study.storage), "/api/studies/1")
    assert shown["objective_names"] == ["step_time_s", "peak_memory [GB]"]
    memory = study.trials().set_index("trial")["peak_memory_bytes"] / 1e9
    for trial in shown["trials"]:
        if trial["state"] == "Complete":
            assert trial["values"][1] == pytest.approx(memory[trial["number"]])
    assert all(len(pair["value"]) <= 200 for pair in shown["user_attrs"])
    assert "dse:sampler" in {pair["key"] for pair in shown["user_attrs"]}


def asked(application: Any, method: str, path: str, **headers: str) -> tuple[str, dict[str, str], bytes]:
    """Status, headers and content of an answer."""
    path, _, query = path.partition("?")
    request: dict[str, Any] = {"PATH_INFO": path, "QUERY_STRING": query, "REQUEST_METHOD": method}
    request |= {"SERVER_PORT": "8080", "HTTP_HOST": "127.0.0.1:8080"}
    request |= {f"HTTP_{name}": value for name, value in headers.items()}
    setup_testing_defaults(request)
    given: list[Any] = []
    content = b"".join(application(request, lambda status, pairs, info=None: given.extend((status, dict(pairs)))))
    return given[0][:3], given[1], content


def test_only_those_who_know_the_token_read_and_none_changes(study):
    application = private(dashboard(study.storage), "secret")
    code, headers, _ = asked(application, "GET", f"/?{TOKEN}=secret")
    assert (code, headers["Location"]) == ("303", "/dashboard/")
    assert "HttpOnly; SameSite=Strict" in headers["Set-Cookie"]
    cookie = headers["Set-Cookie"].partition(";")[0]
    assert asked(application, "GET", "/api/studies", COOKIE=cookie)[0] == "200"
    for more in ({}, {"COOKIE": f"{TOKEN}=guess"}, {"COOKIE": cookie, "HOST": "evil.example:8080"},
                 {"COOKIE": cookie, "ORIGIN": "http://evil.example"}):  # fmt: skip
        assert asked(application, "GET", "/api/studies", **more)[0] == "403"
    assert asked(application, "GET", f"/?{TOKEN}=guess")[0] == "403"
    code, _, content = asked(application, "DELETE", "/api/studies/1", COOKIE=cookie)
    assert (code, json.loads(content)["reason"].partition(";")[0]) == ("403", "read-only")
    assert len(Study.load("small", storage=study.storage).trials()) == 48


@pytest.mark.parametrize("method", ["POST", "PUT", "PATCH", "DELETE", "TRACE", "CONNECT", "FOO", "get", "delete"])
def test_no_method_but_reading_ones_reaches_the_dashboard(method):
    def application(environment, start):
        raise AssertionError(environment)

    code, _, content = asked(private(application, "secret"), method, "/api/studies/1", COOKIE=f"{TOKEN}=secret")
    assert (code, json.loads(content)["reason"].partition(";")[0]) == ("403", "read-only")


@pytest.mark.parametrize("host", ["evil.example", "127.0.0.1.evil.example:8080", "127.0.0.1:1", "127.0.0.1", ""])
def test_no_other_host_is_answered_even_with_the_token(study, host):
    application = private(dashboard(study.storage), "secret")
    for path, more in ((f"/?{TOKEN}=secret", {}), ("/api/studies", {"COOKIE": f"{TOKEN}=secret"})):
        assert asked(application, "GET", path, HOST=host, **more)[0] == "403"


@pytest.mark.parametrize("path", ["../../../../etc/passwd", "..%2f..%2f..%2fetc%2fpasswd", "/etc/passwd", "%00"])
def test_no_path_leads_out_of_the_files_of_the_dashboard(study, path):
    application = private(dashboard(study.storage), "secret")
    for folder in ("/static/", "/artifacts/1/", "/csv/"):
        code, _, content = asked(application, "GET", folder + path, COOKIE=f"{TOKEN}=secret")
        assert code in ("403", "404")
        assert b"root:" not in content


def test_changes_are_made_where_they_are_allowed(small_space):
    Study.create(Space.from_text(small_space), sampler="random").run(2)
    application = private(dashboard("sqlite:///dse.db"), "secret", changes=True)
    assert asked(application, "DELETE", "/api/studies/1", COOKIE=f"{TOKEN}=secret")[0] == "204"
    with pytest.raises(DseError):
        Study.load("small")


def test_no_slow_idle_or_aborted_connection_blocks_others(study, monkeypatch, capfd):
    monkeypatch.setattr(serving, "SENDING", 0.5)
    application = private(dashboard(study.storage), "secret")
    with make_server("127.0.0.1", 0, application, server_class=serving.Server, handler_class=serving.Quiet) as server:
        Thread(target=server.serve_forever, daemon=True).start()
        address = ("127.0.0.1", server.server_port)
        request = f"GET /api/studies HTTP/1.0\r\nHost: {address[0]}:{address[1]}\r\nCookie: {TOKEN}=secret\r\n"
        others = [socket.create_connection(address, timeout=20) for _ in range(30)]
        for index, other in enumerate(others):
            other.sendall(request.encode()[: 2 * index])
        assert answer(address, f"{request}\r\n")[:12] == b"HTTP/1.0 200"
        for other in others[:10]:
            other.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
            other.close()  # with a reset
        for other in others[10:]:
            assert b" 200 " not in other.recv(1000)  # ended though it is open at the other end
        more = [socket.create_connection(address) for _ in range(serving.MOST + 10)]
        time.sleep(1.5)
        assert answer(address, f"{request}\r\n")[:12] == b"HTTP/1.0 200"
        server.shutdown()
        for other in [*others, *more]:
            other.close()
    assert capfd.readouterr().err == ""


def answer(address, request):
    """The bytes that a server sends for a request."""
    with socket.create_connection(address, timeout=20) as connection:
        connection.sendall(request.encode())
        return b"".join(iter(lambda: connection.recv(1 << 16), b""))


def test_what_cannot_be_served_is_one_line(study):
    with pytest.raises(DseError, match="no database there"):
        dashboard("sqlite:///none.db")
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        error = stderr_of("dashboard", "--port", str(port), "--storage", study.storage)
    assert f"dse: --port {port}: Address already in use" in error
