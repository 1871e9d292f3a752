// The UI's process may end and be started again, and a session may expire, while a page is open. What the page shows is
// then bound to something that is gone: it says so, and loads itself anew as soon as there is something to load.
// Conversations lie in the browser, so nothing is lost by it.
(() => {
  const EVERY_MS = 2000;
  const GONE = {
    en: "The web UI is restarting. This page reloads by itself; the models are not affected.",
    "zh-CN": "网页界面正在重新启动，页面会自动继续。模型不受影响。",
  };
  let own = null;  // known once the page's own configuration has been read, which comes after this script
  let banner = null;
  const tell = () => {
    if (banner || !document.body) return;
    banner = Object.assign(document.createElement("div"), {
      className: "qs-gone", textContent: GONE[window.qserve?.language] ?? GONE.en,
    });
    banner.setAttribute("role", "alert");
    document.body.prepend(banner);
  };
  const look = async () => {
    own ??= window.gradio_config?.app_id;
    if (own == null) return;
    try {
      const answer = await fetch("gradio_api/app_id", { cache: "no-store" });
      if (answer.status === 401) location.reload();  // to the sign-in page
      else if (!answer.ok) tell();
      else if ((await answer.json()).app_id !== own) location.reload();
      else { banner?.remove(); banner = null; }
    } catch { tell(); }
  };
  // Somebody is there: the server looks for clicks more often from now on (process/queue_polling.py).
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
})();
