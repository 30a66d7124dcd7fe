"""Malformed requests are refused with an error object that says what would be valid."""

from __future__ import annotations

import httpx

from omni_python.serve.openai.schema import ErrorReply
from tests.serve.openai.malformed import BODIES, CHAT, cases


def test_the_body_that_is_changed_is_a_good_one(http: httpx.Client) -> None:
    assert http.post(CHAT, json=BODIES[CHAT]).status_code == 200


def test_every_malformed_request_is_refused(http: httpx.Client) -> None:
    every = cases()
    assert len(every) >= 200
    wrong = []
    for case in every:
        reply = http.post(case.path, content=case.content, headers=dict(case.headers))
        if reply.status_code != case.status:
            wrong.append(f"{case.name}: {reply.status_code} {reply.text[:200]}")
            continue
        error = ErrorReply.model_validate_json(reply.content).error
        if (
            error.type != "invalid_request_error"
            or case.names not in error.message
            or (case.param is not None and error.param != case.param)
            or (case.names.startswith("messages[") and not (error.param or "").startswith("messages.0.content.0"))
            or len(error.message) > 600
        ):
            wrong.append(f"{case.name}: {error}")
    assert not wrong, "\n".join(wrong)
