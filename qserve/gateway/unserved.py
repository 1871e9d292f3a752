"""Routes of OpenAI's and Anthropic's APIs that are not served here: what each is, and what does it instead.

By the beginning of a path; `{}` stands for any one name, and the longest beginning that fits says it. A test holds the
table to the paths of both SDKs.
"""

from __future__ import annotations

from collections.abc import Mapping

__all__ = ["NOT_SERVED", "why_not_served"]

_STORED = "nothing is stored between requests"
_AGENTS = "agents run on the client"
_ACCOUNTS = "it administers accounts; the keys here are those of `qserve up`"
_MEDIA = "models here read and write text"

NOT_SERVED: Mapping[str, str] = {
    "/v1/responses/compact": "it compacts a conversation; send a shorter list of items as 'input'",
    "/v1/responses/{}/input_items": "it lists the input items of a response; only answers are stored",
    "/v1/chat/completions/{}": f"it is for stored completions; {_STORED}",
    "/v1/messages/batches": "Anthropic's batch format is not served; POST /v1/batches takes requests for /v1/messages",
    "/v1/complete": "it is Anthropic's older API; use /v1/messages or /v1/completions",
    "/v1/edits": "it is OpenAI's older API; use /v1/chat/completions",
    "/v1/engines": "it is OpenAI's older API; use /v1/models",
    "/v1/decisions": "it needs OpenAI's own models; use /v1/chat/completions with a schema",
    "/v1/moderations": "nothing is moderated here",
    "/v1/content_provenance_checks": "it is about the output of OpenAI's models",
    "/v1/uploads": "files come in one piece; use POST /v1/files",
    "/v1/conversations": f"{_STORED}; send the items of the conversation",
    "/v1/prompts": "no prompts are stored; send their text",
    "/v1/skills": f"{_STORED}; describe tools of the client",
    "/v1/vector_stores": "nothing is searched here",
    "/v1/memory_stores": f"{_STORED}; put what the model should know into messages",
    "/v1/fine_tuning": "models are trained by `qserve train`",
    "/v1/fine-tunes": "models are trained by `qserve train`",
    "/v1/evals": "models are evaluated by `qserve eval`",
    "/v1/audio": "speech is not served",
    "/v1/realtime": "speech is not served",
    "/v1/live": "speech is not served",
    **dict.fromkeys(("/v1/images", "/v1/videos"), _MEDIA),
    **dict.fromkeys(("/v1/assistants", "/v1/threads"), f"{_STORED}; use /v1/responses or /v1/chat/completions"),
    **dict.fromkeys(
        (
            "/v1/agents",
            "/v1/chatkit",
            "/v1/containers",
            "/v1/deployments",
            "/v1/deployment_runs",
            "/v1/dreams",
            "/v1/environments",
            "/v1/sessions",
            "/v1/tunnels",
            "/v1/vaults",
        ),
        _AGENTS,
    ),
    **dict.fromkeys(
        (
            "/v1/dashboard",
            "/v1/organization",
            "/v1/organizations",
            "/v1/projects",
            "/v1/safety",
            "/v1/usage",
            "/v1/user_profiles",
            "/v1/webhook_endpoints",
            "/v1/webhook_event_types",
        ),
        _ACCOUNTS,
    ),
}

_PARTS = sorted((tuple(path.split("/")) for path in NOT_SERVED), key=len, reverse=True)


def why_not_served(path: str) -> str | None:
    """What a path of these APIs is, and what does it instead; None for a path of neither."""
    parts = path.split("/")
    for known in _PARTS:
        if len(known) <= len(parts) and all(a in ("{}", b) and b for a, b in zip(known[1:], parts[1:], strict=False)):
            return NOT_SERVED["/".join(known)]
    return None
