// The chat's view: it follows an answer that grows until its reader scrolls up, and no edit box outlives its question.
(() => {
  const AT_THE_END_PX = 8;
  const { text } = qserve;
  let numTurns = 0;
  let shownId = null;

  const follow = (area) => {
    let before = 0;
    area.qsFollows = true;
    area.addEventListener("scroll", () => {
      const left = area.scrollHeight - area.clientHeight - area.scrollTop;
      if (left <= AT_THE_END_PX) area.qsFollows = true;
      else if (area.scrollTop < before) area.qsFollows = false;
      before = area.scrollTop;
    }, { passive: true });
    const toTheEnd = () => { if (area.qsFollows) area.scrollTop = area.scrollHeight; };
    new ResizeObserver(toTheEnd).observe(area);
    new MutationObserver(toTheEnd).observe(area, { childList: true, subtree: true, characterData: true });
    toTheEnd();
  };
  const areas = () => document.querySelectorAll(".qs-bots [role=log]");

  // Gradio keeps a box open by its place in the list, whatever stands there next.
  const closeEditors = () => {
    for (const area of document.querySelectorAll(".qs-bots textarea.edit-textarea")) {
      const row = area.closest(".message-row");
      (row?.querySelector(".message-buttons button:last-child") ??
        row?.nextElementSibling?.querySelector("button:last-child"))?.click();
    }
  };
  // What is edited is the question as it was written, not as it is shown.
  const fillEditor = (button) => {
    const bot = button.closest("[id^=qs-bot-]");
    const number = [...bot.querySelectorAll("button[aria-label=Edit]")].indexOf(button);
    const question = qserve.shown()?.turns?.[number]?.question;
    const fill = () => {
      const area = bot.querySelector("textarea.edit-textarea");
      if (!area || question === undefined) return;
      area.value = question;
      area.dispatchEvent(new Event("input", { bubbles: true }));
    };
    setTimeout(fill, 0);
  };
  document.addEventListener("click", (event) => {
    const button = event.target.closest?.(".qs-bots button[aria-label=Edit]");
    if (button) fillEditor(button);
  }, true);

  document.addEventListener("qserve-changed", () => {
    const shown = qserve.shown();
    const count = shown?.turns?.length ?? 0;
    if (shown?.id === shownId && count === numTurns) return;
    [shownId, numTurns] = [shown?.id, count];
    closeEditors();
    for (const area of areas()) area.qsFollows = true;
  });

  // Areas come late, and a second one later; buttons of code get their word in the reader's language.
  const look = () => {
    for (const area of areas()) if (!("qsFollows" in area)) follow(area);
    for (const button of document.querySelectorAll(".qs-copy-code:empty")) button.textContent = text("chat.copy");
  };
  let waiting = 0;
  new MutationObserver(() => {
    waiting ||= requestAnimationFrame(() => { waiting = 0; look(); });
  }).observe(document.documentElement, { childList: true, subtree: true });
})();
