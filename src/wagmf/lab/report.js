"use strict";
// Draws the figures when they come near the screen, and keeps them in step with the legend, the menus and the theme.
(() => {
  const root = document.documentElement;
  const looks = JSON.parse(document.getElementById("looks").textContent);
  const night = matchMedia("(prefers-color-scheme: dark)");
  const coarse = matchMedia("(pointer: coarse)");
  const plots = [...document.querySelectorAll(".plot")];
  let printing = false;

  const dark = () => !printing && (root.dataset.theme ? root.dataset.theme === "dark" : night.matches);
  const colour = (k) => looks[k][dark() ? 1 : 0];
  const faded = (hex, alpha) => `rgba(${[1, 3, 5].map((i) => parseInt(hex.slice(i, i + 2), 16)).join(",")},${alpha})`;
  const section = (plot) => plot.closest("section");
  const hidden = (plot, k) => section(plot).querySelector(`.legend [data-method="${k}"]`)?.ariaPressed === "false";
  const view = (plot) => {
    const views = source(plot).views;
    return views[Math.min(Number(section(plot).querySelector(".choice")?.value ?? 0), views.length - 1)];
  };

  function source(plot) {
    plot.source ??= JSON.parse(document.getElementById(plot.dataset.source).textContent);
    return plot.source;
  }

  function traces(plot) {
    return view(plot).data.map((trace) => {
      const { method, role } = trace.meta;
      const own = colour(method);
      const drawn = { ...trace, visible: !hidden(plot, method), showlegend: false };
      if (role === "band") return { ...drawn, fillcolor: faded(own, dark() ? 0.2 : 0.14) };
      if (trace.line) drawn.line = { ...trace.line, color: own };
      drawn.marker = { ...trace.marker, color: own, line: { color: own, width: role === "chosen" ? 2 : 0 } };
      if (trace.error_x) drawn.error_x = { ...trace.error_x, color: own };
      return drawn;
    });
  }

  function layout(plot) {
    const given = source(plot).layout;
    const text = dark() ? "#d5d9de" : "#2b3137";
    const grid = dark() ? "#343b43" : "#e3e6ea";
    const axis = { gridcolor: grid, linecolor: dark() ? "#5b646e" : "#aab2ba", zeroline: false, showline: true,
      ticks: "outside", tickcolor: grid, automargin: true, fixedrange: coarse.matches };
    const titled = (own) => ({ ...axis, ...own, title: { standoff: 8, ...own.title, font: { size: 12 } } });
    return {
      xaxis: titled(given.xaxis), yaxis: titled(view(plot).yaxis), hovermode: given.hovermode,
      shapes: (given.shapes ?? []).map((shape) => ({ ...shape, line: { ...shape.line, color: text } })),
      annotations: given.annotations ?? [],
      font: { family: getComputedStyle(document.body).fontFamily, size: 12, color: text },
      paper_bgcolor: "rgba(0,0,0,0)", plot_bgcolor: "rgba(0,0,0,0)", margin: { l: 56, r: 12, t: 8, b: 44 },
      hoverlabel: { bgcolor: dark() ? "#22272d" : "#ffffff", bordercolor: grid, font: { size: 12, color: text } },
      dragmode: coarse.matches ? false : "zoom", showlegend: false, autosize: true,
    };
  }

  function draw(plot) {
    plot.fresh = true;
    Plotly.react(plot, traces(plot), layout(plot), { displayModeBar: false, responsive: true });
  }

  // What is far from the screen is drawn, or drawn anew, when it comes near.
  const close = new Set();
  const near = new IntersectionObserver((entries) => entries.forEach(({ target, isIntersecting }) => {
    close[isIntersecting ? "add" : "delete"](target);
    if (isIntersecting && !target.fresh) draw(target);
  }), { rootMargin: "400px" });
  plots.forEach((plot) => near.observe(plot));
  const redraw = (within) => plots.filter((plot) => within.contains(plot)).forEach((plot) => {
    plot.fresh = false;
    if (close.has(plot)) draw(plot);
  });

  document.querySelectorAll(".legend button").forEach((button) => button.addEventListener("click", () => {
    button.ariaPressed = String(button.ariaPressed === "false");
    redraw(section(button));
  }));
  document.querySelectorAll(".choice").forEach((menu) => menu.addEventListener("change", () => redraw(section(menu))));

  const toggle = document.getElementById("theme");
  function theme(name) {
    if (name) root.dataset.theme = name;
    toggle.textContent = dark() ? "Light theme" : "Dark theme";
    redraw(root);
  }
  toggle.addEventListener("click", () => theme(dark() ? "light" : "dark"));
  night.addEventListener("change", () => theme());
  theme();

  // Paper is light, and has no screen for figures to come near to.
  addEventListener("beforeprint", () => { printing = true; plots.forEach(draw); });
  addEventListener("afterprint", () => { printing = false; redraw(root); });

  document.querySelectorAll("table.sortable th button").forEach((button) => button.addEventListener("click", () => {
    const head = button.parentElement, body = head.closest("table").tBodies[0];
    const up = head.ariaSort !== "ascending", at = head.cellIndex;
    head.parentElement.querySelectorAll("th").forEach((other) => { other.ariaSort = null; });
    head.ariaSort = up ? "ascending" : "descending";
    const key = (row) => row.cells[at].dataset.value ?? row.cells[at].textContent;
    const numeric = head.classList.contains("num");
    const compare = (a, b) => {
      const [one, two] = [key(a), key(b)];
      if (!one || !two) return (one ? 0 : 1) - (two ? 0 : 1); // what is missing comes last, either way
      return (up ? 1 : -1) * (numeric ? one - two : one.localeCompare(two));
    };
    body.append(...[...body.rows].sort(compare));
  }));
})();
