// The charts of the report: certified accuracy by epsilon, training by epoch, and the histogram of margins.
const charts = JSON.parse(document.getElementById("figures").textContent);

function curveChart(figure) {
  const several = figure.runs.length > 1, unit = lengths(figure.levels);
  const runs = figure.runs.map((run) => ({
    ...run, radii: run.radii && unpack(run.radii), interval: run.interval && unpack(run.interval), exact: run.exact && unpack(run.exact),
    stroke: several ? colourOf(run.colour) : "var(--certified)", warm: several ? colourOf(run.colour) : "var(--attack)",
    dash: several ? DASHES[run.colour % 6] : "",
  }));
  const stops = [...new Set(runs.flatMap((run) => run.measured.map((m) => m.eps)))].sort((a, b) => a - b);
  // This is an upper bound: an image that the attack breaks at a measured epsilon is also broken at every larger epsilon.
  const attackAt = (run, eps) => run.measured.reduce((share, m) => (m.eps <= eps ? Math.min(share, m.attacked) : share), run.clean);
  // Without radii, this is a lower bound: an image certified at a measured epsilon is also certified at every smaller epsilon.
  const certifiedAt = (run, eps) => run.radii
    ? reach(run.radii, eps)
    : run.measured.reduce((share, m) => (m.eps >= eps ? Math.max(share, m.certified) : share), 0);
  const most = Math.max(...runs.flatMap((run) => [run.clean, run.reference ? run.reference.certified : 0]));
  const top = niceTop(most);
  let y;
  return {
    low: 0, high: figure.end, start: clamp(figure.start, 0, figure.end), stops, only: false,
    size: (width) => ({ height: width < 560 ? 300 : 420, margin: { left: 44, right: 12, top: 10, bottom: 46 } }),
    draw(svg, plot) {
      const { left, right, bottom } = plot.area;
      y = plot.scale(0, top, false);
      yAxis(svg, plot, niceSteps(0, top, 5), y, (t) => percentTick(t, top));
      xAxis(svg, plot, unit.ticks(0, figure.end, (right - left) / (figure.levels ? 80 : 62)), unit.tick, "perturbation ε per pixel");
      for (const run of runs) this.one(svg, plot, run, bottom);
    },
    one(svg, plot, run, bottom) {
      const { left, right } = plot.area, xs = [];
      for (let x = left; x <= right; x += 0.5) xs.push(x);
      const trace = (share) => path(xs.map((x) => [x, y(share(Math.max(plot.value(x), 0)))]));
      const line = trace((eps) => certifiedAt(run, eps));
      if (!several) node("path", { d: `${line}L${right} ${bottom}L${left} ${bottom}Z`, style: `fill:${run.stroke};fill-opacity:.09` }, svg);
      if (run.interval) node("path", { class: "curve", d: trace((eps) => reach(run.interval, eps)), style: `stroke:${run.stroke};stroke-width:1;stroke-dasharray:2 3` }, svg);
      if (run.exact) node("path", { class: "curve exact", d: trace((eps) => reach(run.exact, eps)), style: "stroke:var(--ink);stroke-width:1" }, svg);
      node("path", { class: "curve", d: line, style: `stroke:${run.stroke};stroke-dasharray:${run.dash}` }, svg);
      if (run.measured.length) {
        const steps = [[left, y(run.clean)]];
        for (const m of run.measured) {
          steps.push([plot.x(m.eps), steps[steps.length - 1][1]], [plot.x(m.eps), y(attackAt(run, m.eps))]);
        }
        node("path", { class: "curve", d: path(steps), style: `stroke:${run.warm};stroke-width:1;stroke-opacity:.75;stroke-dasharray:1 3` }, svg);
        for (const m of run.measured)
          node("circle", { cx: plot.x(m.eps), cy: y(m.attacked), r: 4, style: `fill:var(--paper);stroke:${run.warm};stroke-width:1.8` }, svg);
        for (const m of run.measured.filter((m) => m.exact !== null))
          node("rect", { class: "exact", x: plot.x(m.eps) - 3, y: y(m.exact) - 3, width: 6, height: 6, style: `fill:var(--paper);stroke:var(--ink);stroke-width:1.5` }, svg);
      }
      if (run.reference) {
        const x = plot.x(run.reference.eps), top = y(run.reference.certified);
        node("path", { d: `M${x - 6} ${top}L${x} ${top - 6}L${x + 6} ${top}L${x} ${top + 6}Z`, style: `fill:var(--paper);stroke:var(--ink);stroke-width:1.5` }, svg);
        if (!several) {
          const text = `${run.reference.name} ${percent(run.reference.certified)}`;
          // Put the text beside the mark if the curve is far below it, otherwise under the falling curve: to the left of
          // the mark if there is room, else a shorter text to the right.
          const { name } = run.reference, here = y(certifiedAt(run, run.reference.eps));
          const write = (dx, y, anchor, words) => node("text", { class: "label soft", x: x + dx, y, "text-anchor": anchor }, svg, words);
          if (here - top > 30) write(12, top + 5, "start", text);
          else if (x - left > 8 * text.length) write(-8, Math.max(top, here) + 24, "end", text);
          else write(8, Math.max(top, y(certifiedAt(run, plot.value(x + 8 * name.length)))) + 22, "start", name);
        }
      }
      if (several) return;
      const middle = (left + right) * 0.5;
      node("text", { class: "label", x: middle, y: y(certifiedAt(run, plot.value(middle)) / 3), "text-anchor": "middle", style: `fill:${run.stroke}` }, svg, "certified");
      const last = run.measured[run.measured.length - 1];
      if (last) node("text", { class: "label", x: plot.x(last.eps) + 9, y: y(last.attacked) - 8, style: `fill:${run.warm}` }, svg, run.attack);
    },
    read(eps, plot) {
      const lines = [[{ name: "ε =", text: this.nameOf(eps), key: "eps" }]], dots = [];
      for (const run of runs) {
        const known = run.measured.find((m) => m.eps === eps);
        const certified = known ? known.certified : certifiedAt(run, eps);
        const least = known || run.radii ? "" : "at least ";
        const items = several ? (lines.push([]), lines[lines.length - 1]) : lines[0];
        const tag = several ? `${run.name}:` : "";
        items.push({ name: `${tag} certified`.trim(), text: `${least}${percent(certified)} %`, key: "certified", value: certified, colour: run.stroke });
        for (const [name, share] of Object.entries(known && !several ? known.others : {}))
          items.push({ name: `by ${name}`, text: `${percent(share)} %`, key: name, value: share, colour: run.stroke });
        const exact = known && known.exact !== null ? known.exact : run.exact ? reach(run.exact, eps) : null;
        if (exact !== null) items.push({ name: "exact", text: `${known && known.exact !== null ? "" : "at least "}${percent(exact)} %`, key: "exact", value: exact, colour: "var(--ink)" });
        if (run.measured.length) {
          const attacked = known ? known.attacked : attackAt(run, eps);
          items.push({ name: run.attack, text: `${known ? "" : "at most "}${percent(attacked)} %`, key: "attacked", value: attacked, colour: run.warm });
          if (known) dots.push({ y: y(attacked), colour: run.warm });
        }
        items.push({ name: "clean", text: `${percent(run.clean)} %`, key: "clean", value: run.clean, colour: "var(--soft)" });
        dots.push({ y: y(certified), colour: run.stroke });
      }
      return { lines, dots };
    },
    nameOf(eps) {
      for (const run of runs) for (const m of run.measured) if (m.eps === eps) return m.name;
      return unit.exact(eps);
    },
  };
}

function linesChart(panel) {
  const several = charts.several, series = panel.series;
  const xs = series.flatMap((s) => s.points.map((p) => p[0]));
  const ys = series.flatMap((s) => s.points.map((p) => p[1])).filter((v) => !panel.log || v > 0);
  // The first tenth of the epochs does not determine the axis of shares: it would leave no room for the rest.
  const late = series.flatMap((s) => s.points.filter((p, k, all) => p[0] > 0.1 * all[all.length - 1][0]).map((p) => p[1]));
  const stops = [...new Set([...xs, ...(panel.phases ? panel.phases.p.map((q) => q[0]) : [])])].sort((a, b) => a - b);
  const ends = panel.phases ? panel.phases.ends : null;
  const high = Math.max(...xs, ends ? ends[2] : 0, 2);
  const p = new Map(panel.phases ? panel.phases.p : []);
  const share = panel.unit === "%";
  const strokeOf = (s) => colourOf(s.colour);
  let y, low, top;
  return {
    low: 0, high, start: stops[stops.length - 1], stops, only: true,
    size: () => ({ height: 210, margin: { left: 44, right: 8, top: ends ? 22 : 8, bottom: 28 } }),
    draw(svg, plot) {
      const { left, right, top: upper, bottom } = plot.area;
      low = share ? Math.floor(Math.min(...late) * 10) / 10 : panel.log ? Math.min(...ys) : Math.min(0, ...ys);
      top = share ? niceTop(Math.max(...ys)) : Math.max(...ys);
      if (top <= low) top = panel.log ? low * 10 : low + 1;
      if (ends) {
        const bounds = [0, ...ends.map((e) => Math.min(e, high))];
        node("rect", { class: "phase", x: plot.x(bounds[1]), width: Math.max(plot.x(bounds[2]) - plot.x(bounds[1]), 0), y: upper, height: bottom - upper }, svg);
        const names = [`p = ${short(panel.phases.start)}`, `→ ${short(panel.phases.end)}`, "∞"];
        names.forEach((name, k) => {
          const room = plot.x(bounds[k + 1]) - plot.x(bounds[k]);
          const middle = (plot.x(bounds[k]) + plot.x(bounds[k + 1])) / 2;
          const needed = name.length * 7;
          if (k === 0 && ends[0] > 0) node("text", { x: room > needed ? middle : left, y: upper - 8, "text-anchor": room > needed ? "middle" : "start" }, svg, name);
          else if (room > 4 && k > 0) node("text", { x: middle, y: upper - 8, "text-anchor": "middle" }, svg, name);
        });
      }
      const ticks = panel.log ? logSteps(low, top) : niceSteps(low, top, 4);
      if (!panel.log && !share) top = Math.max(top, ticks[ticks.length - 1]);
      y = plot.scale(low, top, panel.log);
      yAxis(svg, plot, ticks, y, (t) => (share ? percentTick(t, top) : short(t)));
      xAxis(svg, plot, niceSteps(0, high, (right - left) / 70).filter((t) => t === Math.round(t)), short, "");
      const clip = node("clipPath", { id: `${plot.name}-clip` }, svg);
      node("rect", { x: left, y: upper - 2, width: right - left + 4, height: bottom - upper + 3 }, clip);
      for (const s of series) {
        const points = s.points.filter((q) => !panel.log || q[1] > 0).map(([e, v]) => [plot.x(e), y(v)]);
        const style = `stroke:${strokeOf(s)};stroke-dasharray:${several ? DASHES[s.colour % 6] : ""}`;
        node("path", { class: `curve ${s.style}`, d: path(points), style, "clip-path": `url(#${plot.name}-clip)` }, svg);
        if (points.length === 1) node("circle", { cx: points[0][0], cy: points[0][1], r: 3, style: `fill:${strokeOf(s)}` }, svg);
      }
    },
    read(epoch) {
      const first = [{ name: "epoch", text: String(epoch), key: "epoch" }], dots = [];
      if (p.has(epoch) && panel.id !== "p") first.push({ name: "p =", text: p.get(epoch) === "inf" ? "∞" : short(p.get(epoch)) });
      for (const s of series) {
        const latest = s.points.filter((q) => q[0] <= epoch).pop();
        if (!latest) continue;
        const infinite = panel.id === "p" && p.get(epoch) === "inf";
        first.push({ name: s.name, text: infinite ? "∞" : share ? percent(latest[1]) : short(latest[1]), key: s.name, value: latest[1], colour: strokeOf(s) });
        if (!infinite && latest[1] >= low) dots.push({ x: latest[0], y: y(latest[1]), colour: strokeOf(s) });
      }
      return { lines: [first], dots };
    },
  };
}

function histogramChart(figure) {
  const { width, first, eps, runs } = figure, unit = lengths(figure.levels), several = runs.length > 1;
  const bins = runs[0].counts.length, low = first * width, high = (first + bins) * width;
  const most = Math.max(...runs.flatMap((run) => run.counts.map((n) => n / run.total)));
  const middle = (k) => (first + k + 0.5) * width;
  const stops = Array.from({ length: bins }, (_, k) => middle(k));
  const kinds = [["misclassified", "var(--soft)"], ["correct, not certified", "var(--attack)"], ["certified", "var(--certified)"]];
  const kindOf = (x) => (x < 0 ? 0 : x < eps ? 1 : 2);
  const colour = (run, x) => (several ? colourOf(run.colour) : kinds[kindOf(x)][1]);
  let y;
  return {
    low, high, start: stops.find((s) => s > eps) ?? stops[0], stops, only: true,
    size: (w) => ({ height: w < 560 ? 260 : 300, margin: { left: 44, right: 12, top: w < 560 ? 46 : 26, bottom: 46 } }),
    draw(svg, plot) {
      const { left, right, top, bottom } = plot.area;
      y = plot.scale(0, most, false);
      yAxis(svg, plot, niceSteps(0, most, 4), y, (t) => (t === 0 ? "0" : `${+(100 * t).toFixed(1)} %`));
      for (const run of runs) {
        if (several) {
          const outline = run.counts.flatMap((n, k) => [[plot.x((first + k) * width), y(n / run.total)], [plot.x((first + k + 1) * width), y(n / run.total)]]);
          node("path", { class: "curve", d: path(outline), style: `stroke:${colourOf(run.colour)};stroke-dasharray:${DASHES[run.colour % 6]}` }, svg);
          continue;
        }
        run.counts.forEach((n, k) => {
          const x0 = plot.x((first + k) * width), x1 = plot.x((first + k + 1) * width);
          if (n) node("rect", { x: x0 + 0.5, width: Math.max(x1 - x0 - 1, 0.5), y: y(n / run.total), height: bottom - y(n / run.total), style: `fill:${colour(run, middle(k))};fill-opacity:.82` }, svg);
        });
      }
      xAxis(svg, plot, unit.ticks(low, high, (right - left) / (figure.levels ? 80 : 62)), unit.tick, "half margin, in pixel units");
      const fill = (kind) => `fill:${several ? "var(--soft)" : kinds[kind][1]};font-weight:600`;
      const marks = [[0, kinds[0][0], "end", fill(0)], [eps, `certified at ε = ${figure.epsName}`, "start", fill(2)]];
      const room = plot.x(eps) - plot.x(0);
      if (figure.theta && figure.theta < high && plot.x(figure.theta) - plot.x(eps) > 150) marks.push([figure.theta, "θ/2", "start", ""]);
      for (const [at, name, anchor, style] of marks) {
        if (at < low || at > high) continue;
        node("line", { class: "axis", x1: plot.x(at), x2: plot.x(at), y1: top - 22, y2: bottom, "stroke-dasharray": "3 3" }, svg);
        node("text", { x: plot.x(at) + (anchor === "end" ? -6 : 6), y: top - 12, "text-anchor": anchor, style }, svg, name);
      }
      // Without room between the marks, the name of the middle kind is in a row of its own above the others.
      const across = 7 * kinds[1][0].length, centre = plot.x(0) + room / 2;
      const [x, up] = room > across ? [centre, 12] : [clamp(centre, left + across / 2, right - across / 2), 32];
      if (room > 0) node("text", { x, y: top - up, "text-anchor": "middle", style: fill(1) }, svg, kinds[1][0]);
    },
    read(x) {
      const k = clamp(Math.floor(x / width) - first, 0, bins - 1);
      const from = (first + k) * width, to = (first + k + 1) * width;
      const items = [{ name: "from", text: unit.exact(from) }, { name: "to", text: unit.exact(to) }], dots = [];
      for (const run of runs) {
        const n = run.counts[k];
        items.push({
          name: several ? run.name : kinds[kindOf(middle(k))][0], key: "count", value: n, colour: colour(run, middle(k)),
          text: several ? `${percent(n / run.total)} %` : `${n} of ${run.total.toLocaleString("en")} (${percent(n / run.total)} %)`,
        });
        if (several) dots.push({ x: middle(k), y: y(n / run.total), colour: colour(run, middle(k)) });
      }
      return { lines: [items], dots };
    },
  };
}

if (charts.curve) {
  const chart = curveChart(charts.curve), plot = new Plot("curve", chart);
  const form = document.getElementById("ask"), input = document.getElementById("ask-eps");
  const error = document.getElementById("ask-error");
  const ask = () => {
    const [typed, reason] = parseEpsilon(input.value);
    input.setAttribute("aria-invalid", String(reason !== ""));
    error.textContent = reason;
    if (reason) return;
    const known = chart.stops.find((s) => Math.abs(s - typed) < 1e-12);
    plot.move(known ?? typed);
    chart.start = plot.at;
  };
  input.addEventListener("change", ask);
  form.addEventListener("submit", (event) => {
    event.preventDefault();
    ask();
  });
}
charts.training.forEach((panel, k) => new Plot(`training-${k}`, linesChart(panel)));
if (charts.histogram) new Plot("histogram", histogramChart(charts.histogram));

for (const button of document.querySelectorAll(".copy")) {
  button.addEventListener("click", async () => {
    const code = button.parentElement.querySelector("code");
    try {
      await navigator.clipboard.writeText(code.textContent);
      button.textContent = "Copied";
    } catch {
      getSelection().selectAllChildren(code);
      button.textContent = "Selected";
    }
  });
}
