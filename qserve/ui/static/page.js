// Before Gradio's own scripts: language and theme. Then what all pages share: the header's controls, and copying.
(() => {
  const STRINGS = __STRINGS__;
  const stored = (name) => { try { return localStorage.getItem(name); } catch { return null; } };
  const store = (name, value) => { try { localStorage.setItem(name, value); return true; } catch { return false; } };

  // Gradio reads navigator.language and ?__theme once.
  const preferred = stored("qserve.language") || (navigator.language || "en");
  const language = preferred.toLowerCase().startsWith("zh") ? "zh-CN" : "en";
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
  const element = (tag, properties, ...children) => {
    const made = Object.assign(document.createElement(tag), properties);
    made.append(...children);
    return made;
  };

  window.qserve = {
    language, text, stored, store, element,
    header(root) {
      const select = root.querySelector("select");
      select.value = language;
      const signOut = root.querySelector(".qs-sign-out button");
      if (signOut && language !== "en") Object.assign(signOut, { textContent: text("page.sign_out"), lang: language });
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
    // A way out that the planner names, put into its form.
    applies(root, trigger) {
      root.addEventListener("click", (event) => {
        const button = event.target.closest?.(".qs-apply");
        if (button) trigger("select", { command: button.dataset.command });
      });
    },
    // A sentence at the foot of the page, for ten seconds.
    tell(sentence) {
      document.querySelector(".qs-notice")?.remove();
      const notice = element("div", { className: "qs-notice", textContent: sentence });
      notice.setAttribute("role", "status");
      document.body.append(notice);
      setTimeout(() => notice.remove(), 10_000);
    },
  };

  // The buttons in an answer's error do what those below the conversation do.
  document.addEventListener("click", (event) => {
    if (event.target.closest?.(".qs-retry")) document.querySelector("#qs-again").click();
    if (event.target.closest?.(".qs-write-on")) document.querySelector("#qs-continue").click();
  });

  // Copying takes the answer as the model wrote it, not what was made of it.
  const copied = (button) => {
    if (button.matches(".qs-copy-code")) return button.parentElement.querySelector("code").textContent;
    const place = /qs-of-(\d+)-(\d+)-(\d+)/.exec(button.className);
    const answer = place && qserve.shown()?.turns?.[place[1]]?.sides?.[place[2]]?.[place[3]];
    return answer ? answer.content.split("</think>").pop().trim() : button.dataset.text ?? "";
  };
  document.addEventListener("click", async (event) => {
    const button = event.target.closest?.(".qs-copy, .qs-copy-text, .qs-copy-code");
    if (!button) return;
    try { await navigator.clipboard.writeText(copied(button)); } catch {
      const area = element("textarea", { value: copied(button) });
      document.body.append(area); area.select(); document.execCommand("copy"); area.remove();
    }
    button.textContent = text("chat.copied");
    setTimeout(() => { button.textContent = text("chat.copy"); }, 1500);
  });
})();
