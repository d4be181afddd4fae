"use strict";
(() => {
  const COLORS = ["#3b7dd8", "#e0812e", "#4f9d4a", "#cc4b4b", "#8a63b8", "#3aa3a3", "#c79a1e", "#d4649b", "#6b7b8c", "#8c6d4f"];
  const PARTS = [["data_ms", "data"], ["forward_ms", "forward"], ["backward_ms", "backward"], ["optimizer_ms", "optimizer"],
                 ["save_ms", "save"]];
  const SERIES_WITH_LEGEND = 14;
  const BYTES = Array.from({length: 50}, (_, i) => 2 ** i);
  const data = JSON.parse(document.getElementById("data").textContent);
  let runs = data.runs.map(decoded);
  let selected = 0;  // the run of the charts that show only one
  const scales = {};  // by chart: true for a logarithmic one
  const charts = [];
  let chosen = "";    // of all metrics

  function floats(text) {
    const bytes = atob(text), raw = new Uint8Array(bytes.length);
    for (let i = 0; i < raw.length; ++i) raw[i] = bytes.charCodeAt(i);
    return Array.from(new Float32Array(raw.buffer), (v) => (v === v ? v : null));
  }
  function decoded(run) {
    for (const metric of Object.values(run.metrics))
      for (const part of Object.keys(metric)) if (typeof metric[part] === "string") metric[part] = floats(metric[part]);
    return run;
  }
  // Puts the buckets of `next`, which begin at bucket next.from, over those of `run`.
  function merged(run, next) {
    for (const [name, metric] of Object.entries(next.metrics)) {
      const old = run.metrics[name] || {};
      for (const part of Object.keys(metric)) {
        if (part === "smooth") continue;  // always comes whole
        const before = (old[part] || []).slice(0, next.from);
        while (before.length < next.from) before.push(null);
        metric[part] = before.concat(metric[part]);
      }
    }
    return next;
  }

  // Beyond the list: hues by the golden angle, so that neighbours differ.
  function color(i) {
    if (i < COLORS.length) return COLORS[i];
    const hue = (i * 137.508) % 360, part = (n) => {
      const k = (n + hue / 30) % 12, v = 0.52 - 0.27 * Math.max(-1, Math.min(k - 3, 9 - k, 1));
      return Math.round(255 * v).toString(16).padStart(2, "0");
    };
    return "#" + part(0) + part(8) + part(4);
  }
  const css = (name) => getComputedStyle(document.documentElement).getPropertyValue(name).trim();
  function steps(run, size) {
    return Array.from({length: size}, (_, b) => Math.min((b + 1) * run.width, Math.max(run.step, 1)));
  }
  function short(v) {
    if (v == null) return "–";
    const a = Math.abs(v);
    if (a >= 1e9) return (v / 1e9).toPrecision(3) + "G";
    if (a >= 1e6) return (v / 1e6).toPrecision(3) + "M";
    if (a >= 1e4) return (v / 1e3).toPrecision(3) + "k";
    if (a !== 0 && a < 1e-3) return v.toExponential(2);
    return String(+v.toPrecision(4));
  }
  function bytes(v) {
    if (v == null) return "–";
    const units = ["B", "KiB", "MiB", "GiB", "TiB"];
    let i = 0;
    while (Math.abs(v) >= 1024 && i + 1 < units.length) v /= 1024, ++i;
    return +v.toPrecision(3) + " " + units[i];
  }

  // Lines of one x each become a table with a common x.
  function table(lines) {
    return uPlot.join(lines.map((line) => [line.x, line.y]));
  }
  const name_of = (run, text) => (runs.length > 1 ? run.name + (text ? " " + text : "") : text);

  function metric_lines(name, smooth) {
    const lines = [];
    runs.forEach((run, i) => {
      const metric = run.metrics[name];
      if (!metric) return;
      const x = steps(run, metric.mean.length);
      if (smooth && metric.smooth) {
        if (runs.length <= 3 && metric.min && run.width > 1) {
          lines.push({x, y: metric.max, edge: true, color: color(i), label: name_of(run, "most")});
          lines.push({x, y: metric.min, edge: true, color: color(i), label: name_of(run, "least"), closes: true});
        }
        if (runs.length <= 6) lines.push({x, y: metric.mean, color: color(i) + "66", width: 1, label: name_of(run, name)});
        lines.push({x, y: metric.smooth, color: color(i), width: 2, label: name_of(run, "smoothed")});
      } else {
        lines.push({x, y: metric.mean, color: color(i), width: 1.3, label: name_of(run, name)});
      }
    });
    return lines;
  }
  function eval_lines(sets, value) {
    const lines = [];
    runs.forEach((run, i) => Object.entries(run[sets]).forEach(([name, points], k) =>
      lines.push({x: points.step, y: points[value], color: color(i + k), width: 1.5, dots: true, label: name_of(run, name)})));
    return lines;
  }
  // Each area lies on those before it; drawn from the top down, so that lower ones cover.
  function stacked(run, parts) {
    const lines = [];
    let sum = null;
    parts.forEach(([name, label], k) => {
      const metric = run.metrics[name];
      if (!metric || !metric.mean.some((v) => v)) return;
      sum = metric.mean.map((v, b) => (v || 0) + (sum && sum[b] ? sum[b] : 0));
      lines.push({x: steps(run, sum.length), y: sum, own: metric.mean, color: color(k), fill: true, width: 1, label});
    });
    return lines.reverse();
  }
  // What no part accounts for lies between the parts and the step.
  function rest_of(run) {
    const step = run.metrics.step_ms;
    if (!step) return {};
    const own = PARTS.filter(([name]) => name != "save_ms" && run.metrics[name]);
    const rest = step.mean.map((v, b) => Math.max(0, own.reduce((left, [name]) => left - (run.metrics[name].mean[b] || 0), v)));
    return {rest_ms: {mean: rest}};
  }
  function part_lines() {
    const run = runs[selected], with_rest = {...run, metrics: {...run.metrics, ...rest_of(run)}};
    const lines = stacked(with_rest, [...PARTS, ["rest_ms", "rest"]]);
    for (const [name, label, dash] of [["comm_exposed_ms", "communication, exposed", [6, 3]],
                                       ["comm_hidden_ms", "communication, hidden", [2, 3]]]) {
      const metric = run.metrics[name];
      if (metric && metric.mean.some((v) => v))
        lines.push({x: steps(run, metric.mean.length), y: metric.mean, color: css("--ink"), width: 1.3, dash, label});
    }
    return lines;
  }
  function memory_lines() {
    const run = runs[selected];
    const names = Object.keys(run.metrics).filter((name) => name.startsWith("memory/"));
    const lines = stacked(run, names.map((name) => [name, name.slice(7, -6)]));
    for (const [name, label] of [["peak_memory_bytes", "peak"], ["reserved_memory_bytes", "reserved"]]) {
      const metric = run.metrics[name];
      if (metric) lines.push({x: steps(run, metric.mean.length), y: metric.mean, color: css("--soft"), width: 1.3, label});
    }
    if (run.plan && run.step > 0)
      lines.push({x: [1, run.step], y: [run.plan.peak_bytes, run.plan.peak_bytes], color: css("--bad"), width: 1.3,
                  dash: [6, 4], label: "planned peak"});
    return lines;
  }

  // One line for each layer with experts.
  function load_lines() {
    const run = runs[selected], names = Object.keys(run.metrics).filter((name) => /^router\/.*\/max_load$/.test(name));
    return names.map((name, k) => {
      const mean = run.metrics[name].mean;
      return {x: steps(run, mean.length), y: mean, color: color(k), width: 1.3, dots: true, label: name.slice(7, -9)};
    });
  }

  const CHARTS = [
    {title: "loss", lines: () => metric_lines("loss", true), log: true},
    {title: "evaluation loss", lines: () => eval_lines("evaluations", "loss"), log: true},
    {title: "evaluation score", lines: () => eval_lines("scores", "score")},
    {title: "gradient norm", lines: () => metric_lines("grad_norm", true), log: true},
    {title: "learning rate", lines: () => metric_lines("lr")},
    {title: "tokens per second", lines: () => metric_lines("tokens_per_s")},
    {title: "parts of a step, ms", lines: part_lines, one: true},
    {title: "memory", lines: memory_lines, one: true, value: bytes},
    {title: "load of the busiest expert ÷ mean", lines: load_lines, one: true},
    {title: "all metrics", lines: () => metric_lines(chosen), choice: true},
  ];

  function options(chart, lines, width) {
    const axis = {stroke: css("--soft"), grid: {stroke: css("--line"), width: 1}, ticks: {stroke: css("--line"), width: 1},
                  font: "11px system-ui"};
    const value = chart.value || (chosen.endsWith("_bytes") && chart.choice ? bytes : short);
    const bands = [];
    lines.forEach((line, i) => { if (line.closes) bands.push({series: [i, i + 1], fill: line.color + "22"}); });
    return {
      width, height: Math.max(180, Math.min(260, width * 0.5)),
      cursor: {sync: {key: "steps"}, drag: {x: true, y: false}},
      legend: {show: lines.length <= SERIES_WITH_LEGEND},
      scales: {x: {time: false}, y: chart.one ? {range: (_, low, high) => [0, high > 0 ? high * 1.05 : 1]}
                                             : {distr: scales[chart.title] ? 3 : 1}},
      axes: [axis, Object.assign({size: 62, incrs: value === bytes ? BYTES : undefined, values: (_, ticks) => ticks.map((v) => (v == null ? "" : value(v)))}, axis)],
      bands,
      series: [{label: "step"}].concat(lines.map((line) => ({
        label: line.label, stroke: line.edge ? "transparent" : line.color, width: line.edge ? 0 : line.width, dash: line.dash,
        fill: line.fill ? line.color + "b0" : undefined, spanGaps: true, points: {show: !!line.dots, size: 5},
        value: (_, v, s, i) => value(line.own && i != null ? line.own[i] : v),
      }))),
    };
  }

  function draw(chart) {
    let lines = chart.lines();
    const usable = lines.filter((line) => line.y.some((v) => v != null));
    chart.box.hidden = !chart.choice && usable.length === 0;
    if (chart.plot) chart.plot.destroy(), chart.plot = null;
    if (usable.length === 0) return;
    if (scales[chart.title])
      lines = lines.map((line) => Object.assign({}, line, {y: line.y.map((v) => (v > 0 ? v : null))}));
    const width = Math.max(200, Math.floor(chart.box.clientWidth - 24));
    chart.plot = new uPlot(options(chart, lines, width), table(lines), chart.holder);
    chart.drawn = lines.length;
  }
  function element(tag, parent, text) {
    const e = document.createElement(tag);
    if (text !== undefined) e.textContent = text;
    parent.appendChild(e);
    return e;
  }
  function build() {
    const grid = document.getElementById("charts");
    for (const chart of CHARTS) {
      chart.box = element("section", grid);
      chart.box.className = "chart";
      const head = element("header", chart.box);
      element("span", head, chart.title);
      if (chart.log) {
        const button = element("button", head, "log");
        button.type = "button";
        button.setAttribute("aria-pressed", "false");
        button.onclick = () => {
          scales[chart.title] = !scales[chart.title];
          button.setAttribute("aria-pressed", String(scales[chart.title]));
          draw(chart);
        };
      }
      if (chart.one && runs.length > 1) {
        const select = element("select", head);
        runs.forEach((run, i) => (element("option", select, run.name).value = i));
        select.onchange = () => {
          selected = +select.value;
          document.querySelectorAll("select.one").forEach((other) => (other.value = selected));
          CHARTS.filter((other) => other.one).forEach(draw);
        };
        select.className = "one";
        select.setAttribute("aria-label", "run");
      }
      if (chart.choice) {
        const names = [...new Set(runs.flatMap((run) => Object.keys(run.metrics)))].sort();
        const select = element("select", head);
        names.forEach((name) => (element("option", select, name).value = name));
        chosen = names.includes("step_ms") ? "step_ms" : names[0] || "";
        select.value = chosen;
        select.setAttribute("aria-label", "metric");
        select.onchange = () => { chosen = select.value; draw(chart); };
      }
      chart.holder = element("div", chart.box);
      charts.push(chart);
    }
    const list = document.getElementById("runs");
    if (runs.length > 1)
      runs.forEach((run, i) => {
        const item = element("span", list);
        element("i", item).style.background = color(i);
        item.append(run.name);
      });
  }
  function draw_all() { charts.forEach(draw); }

  async function follow() {
    const events = new EventSource("events");
    const status = document.getElementById("status");
    let busy = false, again = false;
    const update = async () => {
      if (busy) { again = true; return; }
      busy = true;
      try {
        const run = runs[0];
        let next = await (await fetch("data?since=" + run.step)).json();
        if (next.runs[0].width !== run.width || next.runs[0].step < run.step)
          next = await (await fetch("data?since=0")).json();
        const fresh = decoded(next.runs[0]);
        runs = [fresh.from > 0 ? merged(run, fresh) : fresh];
        document.getElementById("tables").innerHTML = next.tables;
        document.getElementById("head").innerHTML = next.head;
        draw_all();
      } catch (error) {
        status.textContent = "no connection to the run: " + error.message;
      }
      busy = false;
      if (again) { again = false; update(); }
    };
    events.onmessage = () => { status.textContent = "live"; update(); };
    events.onerror = () => { status.textContent = "no connection to the run; the page shows what it last heard"; };
  }

  const start = performance.now();
  build();
  draw_all();
  requestAnimationFrame(() => {
    document.documentElement.dataset.drawnMs = (performance.now() - start).toFixed(0);
    document.documentElement.dataset.drawn = charts.filter((chart) => chart.plot).map((chart) => chart.title + ":" + chart.drawn).join(",");
  });
  let last_width = innerWidth;
  addEventListener("resize", () => { if (innerWidth !== last_width) last_width = innerWidth, draw_all(); });
  matchMedia("(prefers-color-scheme: dark)").addEventListener("change", draw_all);
  if (data.live) follow();
})();
