// The service, the UI's process or the network may be away for a while, and a session may expire, while a page is open.
// The page says so and asks again until something answers. Where what it was bound to is gone, it loads itself anew:
// conversations are in the browser, and a message that was not sent yet is kept for the page that follows.
(() => {
  const EVERY_MS = 2000;
  const DRAFT = "qserve.draft";
  const { text, element } = qserve;
  let own = null;  // known once the page's own configuration has been read, which comes after this script
  let banner = null;
  const tell = (key) => {
    if (!document.body) return;
    if (!banner) {
      banner = element("div", { className: "qs-gone" });
      banner.setAttribute("role", "alert");
      document.body.prepend(banner);
    }
    if (banner.textContent !== text(key)) banner.textContent = text(key);
  };
  const isBack = () => {
    if (!banner) return;
    banner.remove();
    banner = null;
    if (qserve.isWriting()) location.reload();  // nothing more comes of the answer that was on its way
  };
  const look = async () => {
    own ??= window.gradio_config?.app_id;
    if (own == null) return;
    try {
      const answer = await fetch("gradio_api/app_id", { cache: "no-store" });
      if (answer.status === 401) location.reload();  // to the sign-in page
      else if (!answer.ok) tell("page.restarting");
      else if ((await answer.json()).app_id !== own) location.reload();
      else isBack();
    } catch { tell("failure.unreachable.trying"); }
  };
  // Somebody is there: the server looks for clicks more often from now on (process/app.py).
  let reported = 0;
  const here = () => {
    if (Date.now() - reported < EVERY_MS) return;
    reported = Date.now();
    fetch("gradio_api/app_id?active", { cache: "no-store" }).catch(() => {});
  };
  for (const kind of ["input", "keydown", "pointermove", "pointerdown"]) {
    document.addEventListener(kind, here, { passive: true, capture: true });
  }
  setInterval(() => { if (!document.hidden) look(); }, EVERY_MS);
  document.addEventListener("visibilitychange", () => { if (!document.hidden) look(); });

  const field = () => document.querySelector("#qs-question textarea");
  window.addEventListener("pagehide", () => {
    const draft = field()?.value;
    if (draft) sessionStorage.setItem(DRAFT, draft); else sessionStorage.removeItem(DRAFT);
  });
  const draft = sessionStorage.getItem(DRAFT);
  sessionStorage.removeItem(DRAFT);
  if (draft) {
    const waiting = new MutationObserver(() => {
      const area = field();
      if (!area) return;
      waiting.disconnect();
      area.value = draft;
      area.dispatchEvent(new Event("input", { bubbles: true }));
    });
    waiting.observe(document.documentElement, { childList: true, subtree: true });
  }
})();
