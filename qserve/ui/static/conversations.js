// Conversations in the browser's own storage. They never leave it but with a question that belongs to them.
(() => {
  const PREFIX = "qserve.chat.";
  const MOST_CONVERSATIONS = 100;
  const SAVE_EVERY_MS = 300;
  const { language, text, stored, store, element, tell } = qserve;

  const parsed = (json) => { try { return JSON.parse(json); } catch { return null; } };
  const conversations = () => Object.keys(localStorage)
    .filter((key) => key.startsWith(PREFIX))
    .map((key) => parsed(stored(key)))
    .filter((one) => one && one.id)
    // A copy has the age of its original, and stands above it. The storage's own order is that of random names.
    .sort((a, b) => b.created - a.created || Boolean(b.copy_of) - Boolean(a.copy_of));

  let keeper = null;    // Gradio's component whose value is the conversation
  let current = null;   // the conversation that this tab shows
  let known = null;     // what the storage held of it when this tab last read or wrote it
  let opened = null;    // what was just read from the storage: drawing it is no change
  let copy = null;      // {of, id}: answers to `of` belong to this tab's copy of it
  let saving = 0;
  const left = new Set();  // conversations that this tab has left; answers that still come for them are dropped

  const announce = () => document.dispatchEvent(new Event("qserve-saved"));
  const show = (conversation) => {
    if (current && current.id !== conversation?.id) left.add(current.id);
    left.delete(conversation?.id);
    current = conversation;
    copy = null;
    known = conversation && stored(PREFIX + conversation.id);
    if (conversation) sessionStorage.setItem("qserve.current", conversation.id);
    else sessionStorage.removeItem("qserve.current");
  };

  // Another tab wrote to the same conversation: both are kept, this tab's as a copy.
  const fork = () => {
    const id = Array.from(crypto.getRandomValues(new Uint8Array(6)), (byte) => byte.toString(16).padStart(2, "0")).join("");
    copy = { of: copy?.of ?? current.id, id };
    current = { ...current, id, copy_of: copy.of };
    known = null;
    tell(text("chat.forked"));
  };
  // A full store gives up its oldest conversations, never the one that is open.
  const makeSpace = () => {
    const oldest = conversations().filter((one) => one.id !== current.id).pop();
    if (oldest) localStorage.removeItem(PREFIX + oldest.id);
    return Boolean(oldest);
  };
  const save = () => {
    clearTimeout(saving);
    saving = 0;
    if (!current?.turns?.length) return;
    const held = stored(PREFIX + current.id);
    const json = JSON.stringify(current);
    if (held === json) { known = json; return; }
    if (held !== null && held !== known) fork();
    const isNew = stored(PREFIX + current.id) === null;
    const written = JSON.stringify(current);
    while (!store(PREFIX + current.id, written)) if (!makeSpace()) return;
    known = written;
    sessionStorage.setItem("qserve.current", current.id);
    if (isNew) for (const old of conversations().slice(MOST_CONVERSATIONS)) localStorage.removeItem(PREFIX + old.id);
    if (isNew || isFinished()) announce();
  };
  const isFinished = () => current?.turns?.at(-1)?.sides?.flat().every((one) => one.finish_reason);

  const changed = () => {
    const value = keeper.value;
    if (left.has(value?.id)) return;
    current = copy && value?.id === copy.of ? { ...value, id: copy.id, copy_of: copy.of } : value;
    document.dispatchEvent(new Event("qserve-changed"));
    if (opened !== null && opened === value?.id) { opened = null; return; }
    opened = null;
    // While answers grow, a few times a second is enough; what is finished is kept at once.
    if (isFinished()) save(); else saving ||= setTimeout(save, SAVE_EVERY_MS);
  };
  window.addEventListener("pagehide", () => { if (saving) save(); });

  Object.assign(qserve, {
    shown: () => current,
    isWriting: () => Boolean(current?.turns?.length) && !isFinished(),
    keep(props, trigger, watch) {
      keeper = props;
      watch("value", changed);
      const id = sessionStorage.getItem("qserve.current");
      show(parsed(id && stored(PREFIX + id)));
      opened = current?.id ?? null;
      props.value = current;
      if (current) setTimeout(() => trigger("load"), 0);
    },
    history(root, trigger) {
      const open = (one) => {
        save();
        show(parsed(stored(PREFIX + one.id)) ?? one);
        opened = one.id;
        keeper.value = current;
        trigger("select");
        draw();
      };
      const remove = (one) => {
        localStorage.removeItem(PREFIX + one.id);
        if (one.id === current?.id) { show(null); trigger("clear"); }
        draw();
      };
      const title = (one) => (one.title || "…") + (one.copy_of ? ` (${text("chat.copy_of")})` : "");
      const row = (one) => element("li", {},
        element("button", {
          className: "qs-open" + (one.id === current?.id ? " qs-current" : ""), type: "button", dir: "auto",
          textContent: title(one), title: new Date(1000 * one.created).toLocaleString(language), onclick: () => open(one),
        }),
        element("button", {
          className: "qs-delete", type: "button", textContent: "×", ariaLabel: `${text("chat.delete")}: ${title(one)}`,
          onclick: () => remove(one),
        }));
      const draw = () => {
        const all = conversations();
        root.replaceChildren(all.length
          ? element("ul", { ariaLabel: text("chat.history") }, ...all.map(row))
          : element("p", { className: "qs-none", textContent: text("chat.history.none") }));
      };
      document.addEventListener("qserve-saved", draw);
      window.addEventListener("storage", draw);  // another tab
      draw();
    },
    forget() {
      if (saving) save();
      show(null);
      announce();
    },
    exportConversation(conversation) {
      if (!conversation?.turns?.length) return;
      const url = URL.createObjectURL(new Blob([JSON.stringify(current, null, 2)], { type: "application/json" }));
      element("a", { href: url, download: `qserve-${current.id}.json` }).click();
      setTimeout(() => URL.revokeObjectURL(url), 1000);
    },
  });
})();
