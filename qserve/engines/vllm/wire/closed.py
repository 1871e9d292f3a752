"""Routes of vLLM's server that the gateway does not expose."""

from __future__ import annotations

from collections.abc import Mapping

__all__ = ["CLOSED"]

_ADMIN = "it administers the engine, which belongs to `qserve up`"
_ANY_BODY = "it takes the bodies of all other routes unchecked; use the route of the request"
_EMBED = "Cohere's format is not served; use /v1/embeddings"
_SPEECH = "speech is not served"

CLOSED: Mapping[str, str] = {
    **dict.fromkeys(
        (
            "/pause",
            "/resume",
            "/is_paused",
            "/sleep",
            "/wake_up",
            "/is_sleeping",
            "/reset_prefix_cache",
            "/reset_mm_cache",
            "/reset_encoder_cache",
            "/collective_rpc",
            "/server_info",
            "/start_profile",
            "/stop_profile",
            "/scale_elastic_ep",
            "/is_scaling_elastic_ep",
            "/init_weight_transfer_engine",
            "/shutdown_weight_transfer_engine",
            "/start_weight_update",
            "/start_draft_weight_update",
            "/finish_weight_update",
            "/update_weights",
            "/update_weight_version",
            "/weight_checker",
            "/weight_info",
            "/release_kv_cache_memory",
            "/get_world_size",
            "/v1/load_lora_adapter",
            "/v1/unload_lora_adapter",
            "/inference/v1/abort_requests",
            "/abort_requests",
            "/kv_event_sources",
            "/fault_tolerance/apply",
            "/fault_tolerance/status",
        ),
        _ADMIN,
    ),
    "/load": "/metrics has the load of every worker",
    "/ping": "use /health or /ready",
    "/invocations": _ANY_BODY,
    "/v2/embed": _EMBED,
    **dict.fromkeys(("/v1/chat/completions/derender", "/v1/completions/derender"), "use /detokenize"),
    **dict.fromkeys(("/v1/audio/transcriptions", "/v1/audio/translations", "/v1/realtime"), _SPEECH),
    "/tokenizer_info": "clients that find it tokenize over HTTP, one string a call; use /tokenize",
    "/cohere/v2/chat": "Cohere's format is for Cohere's models",
    "/docs": "use /openapi.json",
    "/redoc": "use /openapi.json",
}
"""Each with the reason; docs/api.md lists them."""
