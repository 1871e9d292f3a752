// Gradio 6.31's Dropdown with values of one's own leaves its list open when the focus moves on, over the fields below it.
document.addEventListener("focusout", ({ target }) => {
  if (!target.matches?.("input[role=combobox]")) return;
  setTimeout(() => { // a click on an option takes the focus as well, and must arrive first
    if (document.activeElement !== target && target.getAttribute("aria-expanded") === "true") {
      target.dispatchEvent(new KeyboardEvent("keydown", { key: "Escape", bubbles: true }));
    }
  }, 150);
});
