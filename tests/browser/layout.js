// What a reader would see go wrong in a report: elements outside the page, labels over labels, rows that stand empty.
// A table that is wider than the page is found in its scroller, or is outside.
() => {
  const LABELS = ".ys span, .xs span, .mark-name, .key, .bar-label, .bar-remark, svg text";
  const MOST_WHITE = 40;
  const width = document.documentElement.clientWidth;
  const found = { outside: [], covered: [], white: [] };
  const name = (element) => `${element.tagName}.${element.className} ${element.textContent.trim().slice(0, 40)}`;
  const height = (cell) => {
    const range = document.createRange();
    range.selectNodeContents(cell);
    return range.getBoundingClientRect().height;
  };
  for (const element of document.querySelectorAll("body *")) {
    if (!element.checkVisibility() || element.closest(".scroll, pre, caption")) continue;
    const box = element.getBoundingClientRect();
    if (box.width && (box.left < -1 || box.right > width + 1)) found.outside.push(name(element));
  }
  for (const scroller of document.querySelectorAll(".scroll, pre")) {
    if (scroller.getBoundingClientRect().right > width + 1) found.outside.push(name(scroller));
  }
  for (const chart of document.querySelectorAll("[role=img]")) {
    const boxes = [...chart.querySelectorAll(LABELS)]
      .filter((label) => label.checkVisibility() && label.textContent.trim())
      .map((label) => [label.textContent, label.getBoundingClientRect()]);
    boxes.forEach(([text, box], index) => {
      for (const [other, its] of boxes.slice(index + 1)) {
        const across = Math.min(box.right, its.right) - Math.max(box.left, its.left);
        const down = Math.min(box.bottom, its.bottom) - Math.max(box.top, its.top);
        if (across > 1 && down > 1) found.covered.push(`${chart.getAttribute("aria-label")}: ${text} and ${other}`);
      }
    });
  }
  for (const row of document.querySelectorAll("tbody tr")) {
    if (!row.checkVisibility()) continue;
    const lines = {};
    for (const cell of row.cells) {
      const box = cell.getBoundingClientRect();
      const filled = height(cell);
      if (filled) (lines[Math.round(box.bottom)] ??= []).push(filled);
    }
    for (const cells of Object.values(lines)) {
      const white = Math.max(...cells) - Math.min(...cells);
      if (white > MOST_WHITE) found.white.push(`${Math.round(white)} px: ${row.textContent.trim().slice(0, 60)}`);
    }
  }
  return found;
}
