"""The application without a network: what it answers, what it refuses, and in which words."""

from __future__ import annotations

import asyncio
import csv
import io
import json
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import pytest

pytest.importorskip("fastapi", reason="pip install 'fedalign[serve]'")

from fedalign import Model
from fedalign.serve.app import Application, create_app
from fedalign.serve.limits import Limits
from helpers.commands import ROOT
from helpers.served import analytic_run

JSON = "application/json"
TEXTS = ["Wheezing at night, uses the inhaler daily.", "Sudden flank pain in waves."]


@pytest.fixture(scope="module")
def clinics() -> Model:
    return Model.load(analytic_run("clinics"))


@pytest.fixture(scope="module")
def machines() -> Model:
    return Model.load(analytic_run("machines"))


async def send(app: Application, body: bytes | list[bytes], kind: str, address: str, **more: Any) -> tuple[int, Any]:
    """The answer to a request whose body arrives in parts."""
    path, _, query = address.partition("?")
    parts = [body] if isinstance(body, bytes) else list(body)
    headers = [(b"host", b"127.0.0.1:80"), (b"content-type", kind.encode()), *more.get("headers", [])]
    scope = {"type": "http", "method": more.get("method", "POST"), "path": path, "raw_path": path.encode()}
    scope |= {"query_string": query.encode(), "headers": headers, "root_path": "", "scheme": "http", "server": None}
    said: list[dict[str, Any]] = []

    async def receive() -> dict[str, Any]:
        if not parts:
            await asyncio.sleep(60)
        part = parts.pop(0)
        return {"type": "http.request", "body": part, "more_body": bool(parts) or more.get("endless", False)}

    async def keep(message: dict[str, Any]) -> None:
        said.append(message)

    await app(scope, receive, keep)
    content = b"".join(message.get("body", b"") for message in said[1:])
    return said[0]["status"], json.loads(content)


def ask(
    model: Model, body: Any, kind: str = JSON, address: str = "/predict", limits: Limits | None = None, **more: Any
) -> tuple[int, Any]:
    app = create_app(model, limits, more.pop("token", None), more.pop("loopback", True))
    try:
        content = json.dumps(body).encode() if isinstance(body, dict) else body
        return asyncio.run(send(app, content, kind, address, **more))
    finally:
        app.service.close()


def form(name: str, content: bytes) -> tuple[bytes, str]:
    head = f'--b\r\nContent-Disposition: form-data; name="file"; filename="{name}"\r\n\r\n'
    return head.encode() + content + b"\r\n--b--\r\n", "multipart/form-data; boundary=b"


def test_texts_get_the_names_and_probabilities_that_the_model_gives(clinics: Model) -> None:
    status, found = ask(clinics, {"rows": TEXTS}, address="/predict?top=9")
    assert status == 200
    expected = clinics.predict_proba(TEXTS)
    assert [one["labels"] for one in found["predictions"]] == clinics.predict(TEXTS)
    for one, row in zip(found["predictions"], expected, strict=True):
        listed = {entry["label"]: entry["probability"] for entry in one["top"]}
        assert listed == pytest.approx(dict(zip(clinics.label_names, row.tolist(), strict=True)), abs=2e-6)
        values = [entry["probability"] for entry in one["top"]]
        assert values == sorted(values, reverse=True)


def test_rows_by_name_by_position_and_in_files_are_answered_alike(machines: Model) -> None:
    with (ROOT / "examples" / "machines" / "test.csv").open(encoding="utf-8", newline="") as file:
        rows = list(csv.DictReader(file))[:7]
    columns = machines.inputs.scaling.columns  # type: ignore[attr-defined]
    numbers = [[float(row[name]) for name in columns] for row in rows]
    objects = [dict(zip(reversed(columns), reversed(values), strict=True)) for values in numbers]
    text = io.StringIO()
    writer = csv.writer(text)
    writer.writerows([columns, *numbers])
    parquet = io.BytesIO()
    pl.DataFrame(numbers, schema=list(columns), orient="row").write_parquet(parquet)
    lines = "\n".join(map(json.dumps, objects)).encode()
    answers = [
        ask(machines, {"rows": numbers}),
        ask(machines, {"rows": objects}),
        ask(machines, text.getvalue().encode(), "text/csv"),
        ask(machines, lines, "application/x-ndjson"),
        ask(machines, parquet.getvalue(), "application/vnd.apache.parquet"),
        ask(machines, *form("rows.PARQUET", parquet.getvalue())),
    ]
    assert [status for status, _ in answers] == [200] * 6
    found = [[{**one, "row": 0} for one in answer["predictions"]] for _, answer in answers]
    assert len(found[0]) == 7
    assert all(one == found[0] for one in found)
    assert answers[2][1]["predictions"][0]["row"] == 2  # below the header, as `fedalign predict` counts


def test_what_decided_is_the_change_that_leaving_it_out_makes(clinics: Model) -> None:
    status, found = ask(clinics, {"rows": [TEXTS[0]]}, address="/predict?top=1&explain=100")
    assert status == 200
    [listed] = found["predictions"][0]["top"]
    parts = {part["part"]: part["change"] for part in listed["because"]}
    assert set(parts) <= {"wheezing", "at", "night", "uses", "the", "inhaler", "daily"}
    which = clinics.class_of(listed["label"])

    def log_odds(text: str) -> float:
        p = clinics.predict_proba([text]).astype(np.float64)[0, which]
        return float(np.log(p / (1 - p)))

    without = log_odds(TEXTS[0].replace("inhaler ", ""))
    assert parts["inhaler"] == pytest.approx(log_odds(TEXTS[0]) - without, abs=1e-3)
    changes = [abs(part["change"]) for part in listed["because"]]
    assert changes == sorted(changes, reverse=True)


def test_a_column_that_decided_is_compared_with_its_mean(machines: Model) -> None:
    scaling = machines.inputs.scaling  # type: ignore[attr-defined]
    row = [mean + (3 * sd if place == 2 else 0) for place, (mean, sd) in enumerate(zip(scaling.mean, scaling.sd))]  # noqa: B905
    _, found = ask(machines, {"rows": [row]}, address="/predict?top=1&explain=100")
    because = found["predictions"][0]["top"][0]["because"]
    assert [part["part"] for part in because] == [scaling.columns[2]]  # the others are at their mean already
    p = machines.predict_proba(np.array([row, list(scaling.mean)])).astype(np.float64)
    which = machines.class_of(found["predictions"][0]["top"][0]["label"])
    odds = np.log(p / (1 - p))[:, which]
    assert because[0]["change"] == pytest.approx(odds[0] - odds[1], abs=1e-3)


def test_rows_without_input_are_listed_and_the_others_answered(clinics: Model) -> None:
    status, found = ask(clinics, {"rows": ["", TEXTS[0], "  "]})
    assert status == 200
    assert [one["row"] for one in found["predictions"]] == [2]
    assert found["skipped"] == [1, 3]
    assert ask(clinics, {"rows": [""]})[1] == {"predictions": [], "skipped": [1]}


def test_requests_that_arrive_together_share_a_forward_pass_and_one_bad_row_spoils_no_other(machines: Model) -> None:
    width = machines.inputs.width  # type: ignore[attr-defined]
    app = create_app(machines)
    rows = [[float(i)] * width for i in range(40)]
    rows[7] = [1e308] * width

    async def together() -> list[tuple[int, Any]]:
        bodies = [json.dumps({"rows": [row]}).encode() for row in rows]
        return list(await asyncio.gather(*(send(app, body, JSON, "/predict") for body in bodies)))

    answers = asyncio.run(together())
    app.service.close()
    assert app.service.batcher.batches == 1
    assert [status for status, _ in answers] == [200] * 7 + [422] + [200] * 32
    assert "far too large" in answers[7][1]["error"]["message"]
    alone = ask(machines, {"rows": [rows[20]]})
    assert answers[20][1]["predictions"][0]["labels"] == alone[1]["predictions"][0]["labels"]


BAD: list[tuple[Any, str, str, int, str]] = [
    (b"", JSON, "", 400, "the body is not JSON"),
    (b"{", JSON, "", 400, "the body is not JSON"),
    (b"[" * 100_000, JSON, "", 400, "the body is not JSON"),
    (b"[1]", JSON, "", 422, 'send {"rows": [...]}'),
    ({"rows": []}, JSON, "", 422, "the list of rows is empty"),
    ({"rows": ["a"], "top": 3}, JSON, "", 422, "unknown key 'top'"),
    ({"rows": [1]}, JSON, "", 422, "this model reads texts"),
    ({"rows": [{"text": "a"}]}, JSON, "", 422, "has no column 'note'"),
    ({"rows": [{"note": "a"}, {"other": "b"}]}, JSON, "", 422, "row 2 has no 'note'; send null"),
    ({"rows": ["a"]}, JSON, "?top=0", 422, "the option 'top' is wrong"),
    ({"rows": ["a"]}, JSON, "?tops=3", 422, "the option 'tops' is wrong"),
    ({"rows": ["a"]}, JSON, "?threshold=nan", 422, "the option 'threshold' is wrong"),
    ({"rows": ["a"] * 50}, JSON, "?explain=3", 413, "send at most 20"),
    (b"\x89PNG", "image/png", "", 415, "the content type is 'image/png'; send application/json"),
    (b"", "", "", 415, "the content type is missing"),
    (b"", "text/csv", "", 422, "the file is empty"),
    (b"note\n", "text/csv", "", 422, "the file holds no row"),
    (b"text\nhello\n", "text/csv", "", 422, "has no column 'note'"),
    (b"PAR1 no", "application/vnd.apache.parquet", "", 422, "cannot be read as Parquet"),
    (form("a.exe", b"x")[0], form("", b"")[1], "", 415, "'a.exe' is none of .csv"),
    (form("../../a.csv", b"text\nx\n")[0], form("", b"")[1], "", 422, "upload.csv has no column 'note'"),
    (b"--b--\r\n", "multipart/form-data; boundary=b", "", 422, "the form holds no file"),
    (b"no form", "multipart/form-data; boundary=b", "", 400, "the form cannot be read"),
    (b"no form", "multipart/form-data", "", 400, "the form cannot be read"),
]


@pytest.mark.parametrize(("body", "kind", "options", "status", "sentence"), BAD)
def test_a_mistake_is_one_sentence(
    clinics: Model, body: Any, kind: str, options: str, status: int, sentence: str
) -> None:
    got, found = ask(clinics, body, kind, f"/predict{options}")
    assert sentence in found["error"]["message"], found
    assert got == status
    assert "Traceback" not in found["error"]["message"]


def test_what_is_too_large_or_too_slow_is_refused(clinics: Model) -> None:
    small = Limits(megabytes=0.001, rows=5, seconds=0.2)
    length = [(b"content-length", b"5000")]
    assert ask(clinics, b"x", JSON, limits=small, headers=length)[0] == 413  # before the body is read
    status, found = ask(clinics, [b"x" * 600, b"x" * 600], JSON, limits=small)  # whatever was announced
    assert (status, found["error"]["code"]) == (413, "too_large")
    assert "larger than 0.001 MB" in found["error"]["message"]
    assert "more than 5 rows" in ask(clinics, {"rows": ["a"] * 6}, limits=small)[1]["error"]["message"]
    assert ask(clinics, b"note\n" + b"a\n" * 6, "text/csv", limits=small)[0] == 413
    status, found = ask(clinics, b"{", JSON, limits=small, endless=True)
    assert (status, found["error"]["code"]) == (408, "too_slow_to_send")
    late = Limits(seconds=1e-9)
    assert ask(clinics, b"note\nhello\n", "text/csv", limits=late)[0] in (408, 503)


def test_a_token_is_asked_for_and_another_host_refused(clinics: Model) -> None:
    body, token = {"rows": [TEXTS[0]]}, "a-long-enough-token"
    status, found = ask(clinics, body, token=token)
    assert (status, found["error"]["message"]) == (
        401,
        "the token is missing; send the header Authorization: Bearer TOKEN",
    )
    wrong = [(b"authorization", b"Bearer a-long-enough-tokem")]
    assert "the token is wrong" in ask(clinics, body, token=token, headers=wrong)[1]["error"]["message"]
    right = [(b"authorization", b"Bearer a-long-enough-token")]
    assert ask(clinics, body, token=token, headers=right)[0] == 200
    assert ask(clinics, b"", address="/health", method="GET", token=token)[0] == 200
    elsewhere = [(b"host", b"evil.example")]
    assert ask(clinics, body, headers=elsewhere)[0] == 403
    assert ask(clinics, body, headers=[*elsewhere, *right], token=token, loopback=False)[0] == 200


def test_the_openapi_document_describes_every_address(clinics: Model) -> None:
    status, found = ask(clinics, b"", address="/openapi.json", method="GET")
    assert status == 200
    assert list(found["paths"]) == ["/predict", "/health", "/model"]
    post = found["paths"]["/predict"]["post"]
    assert [one["name"] for one in post["parameters"]] == ["top", "threshold", "explain"]
    assert {"200", "401", "413", "415", "422", "503"} <= set(post["responses"])
    assert ask(clinics, b"", address="/nothing", method="GET")[1]["error"]["code"] == "not_found"
    assert ask(clinics, b"", address="/predict", method="GET")[1]["error"]["code"] == "wrong_method"


def test_the_pages_ask_no_other_host() -> None:
    for path in (ROOT / "src" / "fedalign" / "serve").glob("*.*"):
        if path.suffix in (".html", ".js", ".css"):
            assert "//" not in path.read_text(encoding="utf-8").replace("// ", ""), path


def test_a_deep_model_says_that_it_does_not_explain(tmp_path: Path) -> None:
    model = Model.load(ROOT / "tests" / "stored" / "model")
    status, found = ask(model, {"rows": ["a"]}, address="/predict?explain=3")
    assert status == 422
    assert "algorithm.name = 'analytic'" in found["error"]["message"]
