// Draws the two plots of the page Now from the minutes that /api/v1/live sends when they change.
(() => {
  const HOUR = 60;
  const HEIGHT = 130;
  const AGAIN_MS = 10000;
  const minutes = new Map();
  const plots = [];
  let source = null;

  // Like seconds_text of notifier/texts.py.
  const two = (number) => String(number).padStart(2, "0");
  const span = (seconds) => {
    if (seconds === null || seconds === undefined) return "–";
    if (seconds < 0.9995) return `${Math.round(seconds * 1000)} ms`;
    if (seconds < 59.95) return `${seconds.toFixed(1)} s`;
    const all = Math.floor(Math.round(seconds) / 60);
    const [days, hours, minutes] = [Math.floor(all / 1440), Math.floor(all / 60) % 24, all % 60];
    const short = hours ? `${hours} h ${two(minutes)} min` : `${minutes} min ${two(Math.round(seconds) % 60)} s`;
    return (days ? `${days} d ${hours} h` : short).replace(/ (0 h|00 min|00 s)$/, "");
  };
  const most = (seconds) => (seconds === null || seconds === undefined ? "–" : `≤ ${span(seconds)}`);
  const whole = (number) => (number ?? 0).toLocaleString("en");
  const some = (number) => number || null; // 0 is not drawn; a value between two gaps is a point
  const POINTS = { points: { show: true, size: 5 } };
  const clock = (seconds) => new Date(seconds * 1000).toISOString().slice(11, 16);
  const colour = (name) => () => getComputedStyle(document.documentElement).getPropertyValue(name);
  const delivered = (minute) => minute.ended.delivered ?? 0;
  const cancelled = (minute) => minute.ended.cancelled ?? 0;
  const others = (minute) => Object.values(minute.ended).reduce((sum, n) => sum + n, 0) - delivered(minute) - cancelled(minute);

  const axis = (values, more) => ({
    stroke: colour("--quiet"), grid: { stroke: colour("--line"), width: 1 }, ticks: { show: false },
    font: "12px system-ui, sans-serif", values: (_, splits) => splits.map(values), ...more,
  });
  const line = (label, name, value, more) => ({
    label, stroke: colour(name), width: 2, value: (_, number) => value(number), ...more,
  });
  // If the pointer is at no minute, the legend shows the newest.
  const tell = (plot) => (plot.cursor.left ?? -1) < 0 && plot.data[0].length && plot.setLegend({ idx: plot.data[0].length - 1 });
  const draw = (id, series, y, scale, columns) => {
    const place = document.getElementById(id);
    const options = {
      width: place.clientWidth, height: HEIGHT, tzDate: (at) => uPlot.tzDate(new Date(at * 1000), "Etc/UTC"),
      series: [{ label: "minute", value: (_, at) => (at === null ? "–" : clock(at)) }, ...series],
      axes: [axis(clock, { space: 60, size: 32 }), axis(y, { size: 64, space: 16, ...(scale.ticks && { splits: (_, __, least, most) => scale.ticks.filter((at) => at >= least && at <= most) }) })],
      scales: { x: { range: (_, first, last) => [first - 30, last + 30] }, y: scale }, cursor: { drag: { x: false, y: false }, y: false },
      hooks: { draw: [tell], setCursor: [tell] },
    };
    const plot = new uPlot(options, columns([]), place);
    plot.root.querySelector("table").classList.add("slim");
    new ResizeObserver(() => plot.setSize({ width: place.clientWidth, height: HEIGHT })).observe(place);
    plots.push({ plot, columns });
  };

  const drawAll = () => {
    document.getElementById("plots").hidden = false;
    draw(
      "plot-throughput",
      [
        line("delivered", "--some", whole, { fill: colour("--some"), paths: uPlot.paths.bars({ size: [0.7, 40] }), width: 0, points: { show: false } }),
        line("accepted", "--link", whole),
        line("cancelled", "--night", whole, POINTS),
        line("other ends", "--full", whole, POINTS),
      ],
      (number) => (Number.isInteger(number) ? whole(number) : ""),
      { range: (_, __, most) => [0, Math.max(5, most * 1.1)] },
      (of) => [of.map((each) => each.at), of.map(delivered), of.map((each) => each.accepted), of.map(cancelled).map(some), of.map(others).map(some)],
    );
    draw(
      "plot-lateness",
      [line("p50", "--link", most, POINTS), line("p99", "--near", most, POINTS)],
      (seconds) => (seconds === null ? "" : span(seconds)),
      { distr: 3, ticks: [0.001, 0.01, 0.1, 1, 10, 60, 600, 3600], range: (_, least, most) => (most === null ? [0.001, 1] : [Math.min(0.001, least), Math.max(1, most * 2)]) },
      (of) => [of.map((each) => each.at), of.map((each) => each.lateness.p50), of.map((each) => each.lateness.p99)],
    );
  };

  const take = ({ minutes: changed }) => {
    for (const each of changed) minutes.set(each.at, each);
    const known = [...minutes.values()].sort((one, other) => one.at - other.at);
    for (const { at } of known.splice(0, known.length - HOUR)) minutes.delete(at);
    if (!plots.length) drawAll();
    for (const { plot, columns } of plots) plot.setData(columns(known));
  };

  // A browser opens at most six connections to a host, so a hidden page keeps none.
  const follow = () => {
    source?.close();
    source = null;
    if (document.hidden) return;
    source = new EventSource("/api/v1/live");
    source.addEventListener("numbers", (event) => take(JSON.parse(event.data)));
    source.addEventListener("error", () => {
      // A browser reconnects by itself if the stream broke, but not if the server refused it.
      if (source?.readyState === EventSource.CLOSED) setTimeout(follow, AGAIN_MS);
    });
  };
  document.addEventListener("visibilitychange", follow);
  matchMedia("(prefers-color-scheme: dark)").addEventListener("change", () => plots.forEach(({ plot }) => plot.redraw()));
  follow();
})();
