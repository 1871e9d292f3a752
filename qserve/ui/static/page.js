// What the pages do in the browser: language and theme, conversations in local storage, copying, the list of them.
// Conversations never leave the browser but with a question that belongs to them.
(() => {
  const STRINGS = __STRINGS__;
  const PREFIX = "qserve.chat.";
  const MOST_CONVERSATIONS = 100;
  const stored = (name) => { try { return localStorage.getItem(name); } catch { return null; } };
  const store = (name, value) => { try { localStorage.setItem(name, value); return true; } catch { return false; } };

  // Language and theme stand before Gradio's own scripts run: it reads navigator.language and ?__theme once.
  const asked = stored("qserve.language") || (navigator.language || "en");
  const language = asked.toLowerCase().startsWith("zh") ? "zh-CN" : "en";
  Object.defineProperty(navigator, "language", { get: () => language, configurable: true });
  Object.defineProperty(navigator, "languages", { get: () => [language, "en"], configurable: true });
  document.documentElement.lang = language;
  const dark = () => stored("qserve.theme")
    ? stored("qserve.theme") === "dark"
    : new URLSearchParams(location.search).get("__theme") === "dark" || (
      new URLSearchParams(location.search).get("__theme") !== "light" && matchMedia("(prefers-color-scheme: dark)").matches);
  const page = new URL(location.href);
  page.searchParams.set("__theme", dark() ? "dark" : "light");
  history.replaceState(history.state, "", page);

  const text = (key) => STRINGS[language][key] ?? key;
  const conversations = () => Object.keys(localStorage)
    .filter((key) => key.startsWith(PREFIX))
    .map((key) => { try { return JSON.parse(stored(key)); } catch { return null; } })
    .filter((one) => one && one.id)
    .sort((a, b) => b.created - a.created);

  let current = null;  // the conversation that this tab shows
  let saving = 0;
  const save = () => {
    if (!current?.turns?.length) return;
    sessionStorage.setItem("qserve.current", current.id);
    const known = conversations();
    for (const old of known.slice(MOST_CONVERSATIONS)) localStorage.removeItem(PREFIX + old.id);
    // A full store gives up its oldest conversations, never the one that is open.
    while (!store(PREFIX + current.id, JSON.stringify(current))) {
      const oldest = known.filter((one) => one.id !== current.id).pop();
      if (!oldest) return;
      localStorage.removeItem(PREFIX + oldest.id);
      known.splice(known.indexOf(oldest), 1);
    }
    document.dispatchEvent(new Event("qserve-saved"));
  };

  const element = (tag, properties, ...children) => {
    const made = Object.assign(document.createElement(tag), properties);
    made.append(...children);
    return made;
  };
  const download = (name, content) => {
    const url = URL.createObjectURL(new Blob([content], { type: "application/json" }));
    element("a", { href: url, download: name }).click();
    setTimeout(() => URL.revokeObjectURL(url), 1000);
  };

  window.qserve = {
    language,
    shown: () => current,
    // The keeper: an invisible component whose value is the conversation.
    keep(props, trigger, watch) {
      watch("value", () => {
        current = props.value;
        clearTimeout(saving);
        // While answers grow, a few times a second is enough; what is finished is kept at once.
        const finished = current?.turns?.at(-1)?.sides?.flat().every((one) => one.finish_reason);
        if (finished) save(); else saving = setTimeout(save, 300);
      });
      const id = sessionStorage.getItem("qserve.current");
      const found = id && stored(PREFIX + id);
      current = found ? JSON.parse(found) : null;
      props.value = current;
      if (current) setTimeout(() => trigger("load"), 0);
    },
    history(root, trigger) {
      const draw = () => {
        const all = conversations();
        const rows = all.map((one) => element("li", {},
          element("button", {
            className: "qs-open" + (one.id === current?.id ? " qs-current" : ""), type: "button",
            textContent: one.title || "…", title: new Date(1000 * one.created).toLocaleString(language),
            onclick: () => trigger("select", { conversation: one }),
          }),
          element("button", {
            className: "qs-delete", type: "button", textContent: "×", ariaLabel: `${text("chat.delete")}: ${one.title}`,
            onclick: () => {
              localStorage.removeItem(PREFIX + one.id);
              if (one.id === current?.id) { current = null; sessionStorage.removeItem("qserve.current"); trigger("clear"); }
              draw();
            },
          })));
        root.replaceChildren(all.length
          ? element("ul", { ariaLabel: text("chat.history") }, ...rows)
          : element("p", { className: "qs-none", textContent: text("chat.history.none") }));
      };
      document.addEventListener("qserve-saved", draw);
      window.addEventListener("storage", draw);  // another tab
      draw();
    },
    forget() { current = null; sessionStorage.removeItem("qserve.current"); document.dispatchEvent(new Event("qserve-saved")); },
    exportConversation(conversation) {
      if (conversation?.turns?.length) {
        download(`qserve-${conversation.id}.json`, JSON.stringify(conversation, null, 2));
      }
    },
    header(root) {
      const select = root.querySelector("select");
      select.value = language;
      const signOut = root.querySelector(".qs-sign-out button");
      if (signOut && language !== "en") Object.assign(signOut, { textContent: "退出登录", lang: language });
      select.onchange = () => { store("qserve.language", select.value); location.reload(); };
      root.querySelector(".qs-theme").onclick = () => {
        const next = document.body.classList.contains("dark") ? "light" : "dark";
        store("qserve.theme", next);
        document.body.classList.toggle("dark", next === "dark");
        const here = new URL(location.href);
        here.searchParams.set("__theme", next);
        history.replaceState(history.state, "", here);
      };
    },
  };

  // Copying takes the answer as the model wrote it, not what was made of it.
  document.addEventListener("click", async (event) => {
    const button = event.target.closest?.(".qs-copy, .qs-copy-text");
    if (!button) return;
    const place = /qs-of-(\d+)-(\d+)-(\d+)/.exec(button.className);
    const answer = place && current?.turns?.[place[1]]?.sides?.[place[2]]?.[place[3]];
    const copied = answer ? answer.content.split("</think>").pop().trim() : button.dataset.text ?? "";
    try { await navigator.clipboard.writeText(copied); } catch {
      const area = element("textarea", { value: copied });
      document.body.append(area); area.select(); document.execCommand("copy"); area.remove();
    }
    button.textContent = text("chat.copied");
    setTimeout(() => { button.textContent = text("chat.copy"); }, 1500);
  });
})();
