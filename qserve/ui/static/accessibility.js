// What screen readers stumble over in Gradio 6.31's own components, as axe-core found it: a list whose children are
// buttons, a button whose name does not say what stands on it, a message whose name is its HTML.
(() => {
  // Names that Gradio has in English only; with a label after them, a beginning.
  const NAMES = {
    "More tabs": "page.more_tabs", "chatbot conversation": "chat.conversation", "undo": "page.undo",
    "File upload": "page.upload", "number input for ": "page.number", "range slider for ": "page.slider",
  };
  const translate = (one) => {
    const name = one.getAttribute("aria-label");
    const english = Object.keys(NAMES).find((known) => name === known || (known.endsWith(" ") && name.startsWith(known)));
    if (english) one.setAttribute("aria-label", qserve.text(NAMES[english]) + name.slice(english.length));
  };
  const mend = () => {
    if (qserve.language !== "en") document.querySelectorAll("[aria-label]").forEach(translate);
    for (const one of document.querySelectorAll('.examples[role="list"]')) one.setAttribute("role", "group");
    for (const one of document.querySelectorAll("button.upload-container[aria-label], button[aria-dropeffect][aria-label]")) {
      if (one.innerText.trim()) one.removeAttribute("aria-label");
    }
    for (const one of document.querySelectorAll("[data-testid=bot][aria-label], [data-testid=user][aria-label]")) {
      one.removeAttribute("aria-label");
    }
  };
  let waiting = 0;
  new MutationObserver(() => {
    waiting ||= requestAnimationFrame(() => { waiting = 0; mend(); });
  }).observe(document.documentElement, { childList: true, subtree: true });
})();
