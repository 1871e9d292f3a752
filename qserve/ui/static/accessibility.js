// What screen readers stumble over in Gradio 6.31's own components, as axe-core found it: a list whose children are
// buttons, a button whose name does not say what stands on it, a message whose name is its HTML.
(() => {
  const mend = () => {
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
