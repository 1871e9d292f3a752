"""Asks the service of a container for an answer, a reward and its page: scripts/image_check.sh runs it inside."""

from __future__ import annotations

import json
import os
import sys
import time
from typing import Any
from urllib.error import HTTPError
from urllib.parse import urlencode
from urllib.request import HTTPCookieProcessor, OpenerDirector, Request, build_opener, urlopen

URL = "http://127.0.0.1:8000"
KEY = {"authorization": f"Bearer {os.environ['QSERVE_API_KEY']}"}
QUESTION = "What is 12+30?"


def main() -> None:
    """Ends with an assertion that names what the service answered."""
    chat = {"model": "demo", "messages": [{"role": "user", "content": QUESTION}], "temperature": 0}
    assert status_without_key("/v1/models") == 401
    answer = post("/v1/chat/completions", chat)["choices"][0]["message"]["content"]
    assert answer.strip() == "42", answer
    if "--reward" in sys.argv:
        scored = post("/v1/reward", {"model": "demo-reward", "prompt": QUESTION, "responses": ["42", "43"]})
        right, wrong = (entry["reward"] for entry in scored["data"])
        assert right > wrong, scored
    assert_page()


def post(path: str, body: object) -> Any:
    """The answer of `path` to a JSON body."""
    request = Request(URL + path, json.dumps(body).encode(), {"content-type": "application/json", **KEY})
    with urlopen(request, timeout=120) as response:
        return json.load(response)


def status_without_key(path: str) -> int:
    """The status of a GET that brings no key."""
    try:
        with urlopen(URL + path, timeout=120) as response:
            return int(response.status)
    except HTTPError as refused:
        return refused.code


def assert_page() -> None:
    """Signs in as a browser does. The web UI starts when it is first asked for, and is there within two minutes."""
    browser = build_opener(HTTPCookieProcessor())
    browser.addheaders = [("accept", "text/html"), ("origin", URL), ("sec-fetch-site", "same-origin")]
    page = opened(browser, "/sign-in", urlencode({"key": os.environ["QSERVE_API_KEY"]}).encode())
    ends_at = time.monotonic() + 120
    while "gradio_config" not in page:
        assert time.monotonic() < ends_at, page[:500]
        time.sleep(1)
        page = opened(browser, "/")


def opened(browser: OpenerDirector, path: str, form: bytes | None = None) -> str:
    """The page at `path`."""
    with browser.open(URL + path, form, timeout=120) as response:
        return str(response.read().decode())


main()
