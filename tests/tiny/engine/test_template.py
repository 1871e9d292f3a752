"""The chat template is rendered as transformers renders it, and only it sees a request's template arguments."""

from __future__ import annotations

from typing import Any

import pytest

from qserve.prompts.template import ChatTemplate, TemplateRefused

LOOP = "{% for m in messages %}"
TEMPLATES = {
    "generation": LOOP + "{{ m.role }}: {% generation %}{{ m.content }}{% endgeneration %}\n{% endfor %}",
    "trimmed": LOOP + "\n{{ m['content'] | trim }}|{{ loop.index }}\n{% endfor %}{{ eos_token }}",
    "tojson": "{{ messages | tojson }}{% if tools %}{{ tools | tojson(indent=2) }}{% endif %}{{ bos_token }}",
    "loop controls": LOOP + "{% if m.role == 'tool' %}{% continue %}{% endif %}{{ m.content }}{% endfor %}",
    "variables": "{{ enable_thinking is defined }}{{ add_generation_prompt }}{{ messages[-1].content }}",
}
CONVERSATIONS = [
    [{"role": "user", "content": "hi <b>there</b> é\n"}],
    [
        {"role": "system", "content": "be brief"},
        {"role": "user", "content": "<think>no</think> what?"},
        {"role": "assistant", "content": "<think>\nhm\n</think>\n\nthat "},
    ],
]


@pytest.mark.parametrize("continues", [False, True])
@pytest.mark.parametrize("variables", [{}, {"enable_thinking": False}, {"tools": [{"name": "f", "x": "<é>"}]}])
@pytest.mark.parametrize("template", [None, *TEMPLATES])
def test_it_renders_as_transformers_does(
    demo_tokenizer: Any, template: str | None, variables: dict[str, Any], continues: bool
) -> None:
    if continues and template == "tojson":
        pytest.skip("transformers wants to find the word content in the template")
    source = demo_tokenizer.chat_template if template is None else TEMPLATES[template]
    ours = ChatTemplate(source, demo_tokenizer.special_tokens_map)
    for messages in CONVERSATIONS:
        settings = {"add_generation_prompt": not continues, "continue_final_message": continues}
        try:
            meant = demo_tokenizer.apply_chat_template(
                messages, chat_template=source, tokenize=False, **settings, **variables
            )
        except ValueError:  # the template leaves out what is to be continued
            with pytest.raises(TemplateRefused):
                ours.render(messages, **settings, variables=variables)
        else:
            assert ours.render(messages, **settings, variables=variables) == meant


def test_what_a_template_raises_is_a_refusal() -> None:
    for source in ("{{ raise_exception('no') }}", "{{ 1 / 0 }}", "{{ messages[7].x.y }}", "{% if %}"):
        with pytest.raises(TemplateRefused):
            ChatTemplate(source).render([{"role": "user", "content": "x"}], add_generation_prompt=True)
