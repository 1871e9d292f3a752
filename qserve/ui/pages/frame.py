"""The frame around the pages: name, what is served, language and theme, and the tabs."""

from __future__ import annotations

import html
from collections.abc import Mapping
from functools import partial
from typing import Any

import gradio as gr

from qserve.ui.client.api import Api, ApiFailure
from qserve.ui.client.served_models import ServedModels, served_models
from qserve.ui.pages.page import Page, Update
from qserve.ui.pages.shared import PRIVATE, Shared
from qserve.ui.pages.table import PAGES
from qserve.ui.settings import UISettings
from qserve.ui.strings import LANGUAGES, marked, translate
from qserve.ui.views.failures import failure_sentence, told_waiting

__all__ = ["build_blocks"]

_MOST_WAITING = 256
_LOOK_EVERY_S, _LOOK_AGAIN_S = 10, 2
"""The second while something is not ready."""
_NOTHING = ServedModels()
_THEME = "Light or dark · 浅色或深色"
_HEADER = f"""<header class="qs-header">
  <h1 class="qs-name">qserve</h1>
  <div class="qs-status" role="status">${{value}}</div>
  <label class="qs-language"><span class="qs-hidden">Language · 语言</span><select>
    {"".join(f'<option value="{code}">{name}</option>' for code, name in LANGUAGES.items())}
  </select></label>
  <button type="button" class="qs-theme" aria-label="{_THEME}" title="{_THEME}">◐</button>
  __SIGN_OUT__
</header>"""
_SIGN_OUT = """<form class="qs-sign-out" method="post" action="/sign-out">
    <button type="submit" lang="en" title="Sign out · 退出登录">Sign out</button>
  </form>"""


def _header(settings: UISettings) -> str:
    """With a way out where there is a way in."""
    return _HEADER.replace("__SIGN_OUT__", _SIGN_OUT if settings.has_sign_in else "")


def build_blocks(settings: UISettings) -> Any:
    """All pages as one gr.Blocks; what the server lacks is hidden when a page is opened."""
    api = Api(settings)
    with gr.Blocks(title="qserve", analytics_enabled=False, fill_width=True) as blocks:
        status = gr.HTML(
            "",
            html_template=_header(settings),
            js_on_load="qserve.header(element);",
            elem_id="qs-top",
            apply_default_css=False,
        )
        language = gr.Textbox("en", visible="hidden", elem_id="qs-language", label="language", container=False)
        shared = Shared(api, language, "/report" if settings.socket else f"{api.url}/report")
        with gr.Tabs(elem_id="qs-tabs"):
            pages = dict(_drawn(kind, shared) for kind in PAGES)
        _connect(pages)
        _follow_server(blocks, status, shared, pages)
    # One listener answers many readers at once; Gradio's own default is one at a time.
    blocks.queue(default_concurrency_limit=None, max_size=_MOST_WAITING, api_open=False)
    return blocks


def _follow_server(blocks: Any, status: Any, shared: Shared, pages: Mapping[Any, Page]) -> None:
    """Asks what is served, when the whole is loaded and then every few seconds."""
    hidden = [tab for tab, page in pages.items() if not page.can_be_filled(_NOTHING)]
    timer, known = gr.Timer(_LOOK_EVERY_S), gr.State(None)
    of_pages = [component for page in pages.values() for component in page.outputs]
    outputs = [status, shared.language, timer, known, *hidden, *of_pages]

    async def looked(wanted: str, shown: Any) -> Update:
        """The status; and where other models are served than before, what depends on them."""
        served = await served_models(shared.api)
        every_s = _LOOK_EVERY_S if served.is_ready else _LOOK_AGAIN_S
        update: Update = {status: _status(served, wanted), shared.language: wanted, timer: gr.Timer(every_s)}
        models = [served.is_qserve, served.chat, served.reward]
        # What the page shows of a server that is away may be needed again in a moment.
        if models == shown or (shown is not None and served.failure):
            return update
        update |= {known: models, **{tab: gr.update(visible=pages[tab].can_be_filled(served)) for tab in hidden}}
        for page in pages.values():
            update |= page.show(served)
        return update

    timer.tick(looked, [shared.language, known], outputs, **PRIVATE)
    blocks.load(looked, [shared.language, known], outputs, js="(_, known) => [qserve.language, known]", **PRIVATE)


def _drawn(kind: type[Page], shared: Shared) -> tuple[Any, Page]:
    """The tab of a page, and the page in it."""
    is_visible = kind.can_be_filled(_NOTHING)
    with gr.Tab(marked(f"tab.{kind.name}"), id=kind.name, visible=is_visible) as tab:
        return tab, kind(shared)


def _connect(pages: Mapping[Any, Page]) -> None:
    """A page that is opened draws what it has to; those that follow something meanwhile stop."""
    for tab, page in pages.items():
        if page.on_open is not None:
            tab.select(*page.on_open, **PRIVATE)
        others = [other.timer for other in pages.values() if other is not page and other.timer is not None]
        if others:
            tab.select(partial(_stopped, len(others)), None, others, **PRIVATE)


def _stopped(count: int) -> Any:
    """So many timers that ask no more."""
    timers = [gr.Timer(active=False) for _ in range(count)]
    return timers if count > 1 else timers[0]


def _problem(failure: ApiFailure, language: str) -> str:
    if failure.status == 0:
        return translate(language, "failure.unreachable.trying")
    return " ".join(failure_sentence(failure, language))


def _status(served: ServedModels, language: str) -> str:
    """One line: what is served, or why it is not."""
    if served.failure:
        return f'<span class="qs-bad">{html.escape(_problem(served.failure, language))}</span>'
    if served.waiting:
        return f'<span class="qs-wait">{html.escape(told_waiting(served, language, " · "))}</span>'
    names = [*served.chat, *served.reward]
    if not names:
        return f'<span class="qs-bad">{translate(language, "status.none")}</span>'
    return " · ".join(f'<span class="qs-good">{html.escape(name)}</span>' for name in names)
