// Draws the page, and adds tooltips at the pointer, sorting by column, and filters.
(() => {
  const source = document.getElementById("data");
  document.querySelector("main").append(...[views[source.dataset.view](JSON.parse(source.textContent))].flat(Infinity).filter((node) => node instanceof Node));

  const tip = document.createElement("div");
  tip.className = "tooltip";
  tip.hidden = true;
  document.body.append(tip);
  document.addEventListener("pointermove", (event) => {
    const mark = event.target.closest ? event.target.closest("[data-tip]") : null;
    tip.hidden = !mark;
    if (!mark) return;
    tip.textContent = mark.dataset.tip;
    const box = tip.getBoundingClientRect();
    const x = event.clientX + 14, y = event.clientY + 16;
    tip.style.left = Math.max(4, Math.min(x, innerWidth - box.width - 8)) + "px";
    tip.style.top = (y + box.height > innerHeight ? event.clientY - box.height - 12 : y) + "px";
  });

  // A cell sorts by its data-v, a number, where there is one, else by its text.
  const compare = (a, b) => {
    const x = a.dataset.v, y = b.dataset.v;
    return x !== undefined && y !== undefined ? x - y : a.textContent.localeCompare(b.textContent, "en", { numeric: true });
  };
  for (const table of document.querySelectorAll("table.sortable")) {
    const heads = [...table.tHead.rows[0].cells], body = table.tBodies[0];
    heads.forEach((head, column) => {
      head.setAttribute("aria-sort", "none");
      head.tabIndex = 0;
      const sort = () => {
        const down = head.getAttribute("aria-sort") === "ascending";
        for (const other of heads) other.setAttribute("aria-sort", "none");
        head.setAttribute("aria-sort", down ? "descending" : "ascending");
        const rows = [...body.rows].sort((a, b) => compare(a.cells[column], b.cells[column]));
        if (down) rows.reverse();
        body.append(...rows);
      };
      head.addEventListener("click", sort);
      head.addEventListener("keydown", (event) => { if (event.key === "Enter") sort(); });
    });
  }

  for (const table of document.querySelectorAll("table.filterable")) {
    const rows = [...table.tBodies[0].rows].map((row) => [row, row.textContent.toLowerCase()]);
    const input = document.createElement("input"), count = document.createElement("span");
    input.type = "search";
    input.className = "filter";
    input.placeholder = "Filter: words in any column";
    input.setAttribute("aria-label", "Filter rows");
    count.className = "soft";
    input.addEventListener("input", () => {
      const words = input.value.toLowerCase().split(/\s+/).filter(Boolean);
      let shown = 0;
      for (const [row, text] of rows) {
        row.hidden = !words.every((word) => text.includes(word));
        if (!row.hidden) ++shown;
      }
      count.textContent = words.length ? shown + " of " + rows.length + " rows" : "";
    });
    table.parentNode.before(input, count);
  }
})();
