// Page of a report: style and script, which get the run's numbers as JSON.

#include "model/train/report/report_page.h"

namespace zs {
namespace {

constexpr std::string_view kStyle = R"css(
:root { color-scheme: light dark; --page: #f6f6f3; --card: #ffffff; --text: #1d1d1b; --muted: #66655f; --line: #e4e3dd;
  --first: #2468c4; --second: #c2560c; --good: #1d7a3a; --warn: #92610a; --bad: #b3261e; }
@media (prefers-color-scheme: dark) {
  :root { --page: #141413; --card: #1e1e1c; --text: #ecebe6; --muted: #a09f97; --line: #34332f;
    --first: #6aa5f2; --second: #f0944d; --good: #62c07f; --warn: #d9a441; --bad: #f2867d; } }
* { box-sizing: border-box; }
body { margin: 0; background: var(--page); color: var(--text); font: 15px/1.45 system-ui, sans-serif; }
main { max-width: 1240px; margin: 0 auto; padding: 20px 16px 32px; }
h1 { font-size: 24px; line-height: 1.2; margin: 0; overflow-wrap: anywhere; }
h2 { font-size: 15px; font-weight: 600; margin: 0; }
header { display: flex; flex-wrap: wrap; align-items: center; gap: 6px 12px; }
.state { font-size: 13px; font-weight: 600; padding: 2px 10px; border: 1.5px solid currentColor; border-radius: 99px; }
.running { color: var(--first); } .finished { color: var(--good); } .stopped { color: var(--warn); }
.failed, .broken { color: var(--bad); }
.under { color: var(--muted); margin: 4px 0 0; font-size: 14px; overflow-wrap: anywhere; }
.note { border-left: 3px solid var(--warn); padding: 2px 10px; margin: 12px 0 0; font-size: 14px; }
.bar { height: 5px; border-radius: 3px; background: var(--line); margin: 14px 0 0; overflow: hidden; }
.bar i { display: block; height: 100%; background: var(--first); }
dl { display: grid; grid-template-columns: repeat(auto-fit, minmax(132px, 1fr)); gap: 10px; margin: 16px 0; }
dl div { background: var(--card); border: 1px solid var(--line); border-radius: 10px; padding: 9px 12px; }
dt { color: var(--muted); font-size: 13px; }
dd { margin: 0; font-size: 21px; font-weight: 600; font-variant-numeric: tabular-nums; line-height: 1.25; }
dd small { display: block; font-size: 12.5px; font-weight: 400; color: var(--muted); }
.grid { display: grid; grid-template-columns: repeat(auto-fit, minmax(min(100%, 470px), 1fr)); gap: 14px; }
.card { background: var(--card); border: 1px solid var(--line); border-radius: 10px; padding: 12px 14px; min-width: 0; }
.wide { grid-column: 1 / -1; }
.top { display: flex; flex-wrap: wrap; justify-content: space-between; gap: 2px 16px; margin-bottom: 6px; }
.key { color: var(--muted); font-size: 13px; display: flex; flex-wrap: wrap; gap: 0 14px; }
.key i { display: inline-block; width: 14px; height: 3px; border-radius: 2px; vertical-align: middle;
  margin-right: 6px; }
.plot { position: relative; touch-action: pan-y; }
.plot svg { display: block; width: 100%; }
svg text { fill: var(--muted); font-size: 11.5px; font-variant-numeric: tabular-nums; }
.tip { position: absolute; top: 4px; pointer-events: none; background: var(--card); border: 1px solid var(--line);
  border-radius: 6px; padding: 3px 8px; font-size: 12.5px; white-space: nowrap; box-shadow: 0 2px 8px #0003; }
.kind { display: grid; grid-template-columns: minmax(84px, 150px) 1fr 74px; gap: 8px; align-items: center;
  font-size: 14px; padding: 3px 0; }
.kind span { overflow-wrap: anywhere; }
.kind b { text-align: right; font-weight: 500; font-variant-numeric: tabular-nums; }
.kind i { display: block; height: 12px; min-width: 2px; border-radius: 0 4px 4px 0; background: var(--first); }
.lost { display: flex; flex-wrap: wrap; justify-content: space-between; gap: 0 14px; font-size: 14px; padding: 3px 0; }
.lost span { flex: 1 1 90px; overflow-wrap: anywhere; }
.lost b { font-weight: 500; font-variant-numeric: tabular-nums; }
details { margin-top: 14px; } summary { cursor: pointer; font-weight: 600; font-size: 15px; }
pre { overflow-x: auto; font-size: 12.5px; line-height: 1.5; margin: 10px 0 0; }
)css";

constexpr std::string_view kNumbers = R"js(
'use strict';
const run = JSON.parse(document.getElementById('data').textContent);
const make = (tag, attributes = {}, ...inside) => {
  const node = tag.startsWith('svg:') ? document.createElementNS('http://www.w3.org/2000/svg', tag.slice(4))
                                      : document.createElement(tag);
  for (const [key, value] of Object.entries(attributes)) node.setAttribute(key, value);
  node.append(...inside.filter(part => part !== null));
  return node;
};
const scaled = (value, base, units, digits) => {
  let unit = 0;
  while (Math.abs(value) >= 0.9995 * base && unit + 1 < units.length) { value /= base; ++unit; }
  const text = unit === 0 && Number.isInteger(value) ? String(value) : String(Number(value.toPrecision(digits)));
  return text + units[unit];
};
const count = value => scaled(value, 1000, ['', 'k', 'M', 'G', 'T'], 3);
const bytes = value => scaled(value, 1024, [' B', ' KiB', ' MiB', ' GiB', ' TiB'], 3);
bytes.unit = value => 1024 ** Math.min(4, Math.floor(Math.log(Math.max(1, value)) / Math.log(1024)));
const plain = value => Math.abs(value) >= 1e5 || (value !== 0 && Math.abs(value) < 1e-3)
    ? value.toExponential(2).replace(/\.?0*e/, 'e').replace('e+', 'e') : String(Number(value.toPrecision(5)));
const duration = seconds => {
  if (seconds < 59.5) return `${plain(Number(seconds.toPrecision(2)))} s`;
  const all = Math.round(seconds), pad = number => String(number).padStart(2, '0');
  const hours = Math.floor(all / 3600), minutes = Math.floor(all / 60) % 60;
  return hours > 0 ? `${hours}:${pad(minutes)}:${pad(all % 60)}` : `${minutes}:${pad(all % 60)}`;
};
const minutesOf = time => new Date(time * 1000).toLocaleString([], {dateStyle: 'medium', timeStyle: 'short'});
)js";

constexpr std::string_view kHead = R"js(
const main = document.querySelector('main');
const head = () => {
  const last = run.last, at = last ? last.step : 0;
  main.append(make('header', {}, make('h1', {}, run.name),
                   make('span', {class: 'state ' + run.state.split(' ')[0]}, run.state)));
  const asOf = run.state === 'running' ? 'as of ' : 'written ';
  const planned = run.steps ? ` of ${run.steps.toLocaleString()}` : '';
  main.append(make('p', {class: 'under'}, [`step ${at.toLocaleString()}${planned}`,
      asOf + minutesOf(run.written), 'zshard ' + run.version].join(' · ')));
  if (run.detail) main.append(make('p', {class: 'under'}, run.state + ' ' + run.detail));
  if (run.damaged.length) main.append(make('p', {class: 'note'},
      `metrics.jsonl has ${run.damaged.length} damaged line${run.damaged.length > 1 ? 's' : ''}, left out here: `
      + run.damaged.slice(0, 10).join(', ') + (run.damaged.length > 10 ? ' …' : '')));
  if (run.steps) main.append(make('div', {class: 'bar'},
      make('i', {style: `width:${Math.min(100, 100 * at / run.steps)}%`})));
};
const tiles = () => {
  const list = make('dl'), last = run.last;
  const tile = (name, value, under) => list.append(make('div', {}, make('dt', {}, name),
      make('dd', {}, value, under ? make('small', {}, under) : null)));
  if (!last) return;
  tile('loss', last.loss === null ? 'not finite' : plain(last.loss), 'of the last step');
  if (run.validation) tile('validation', plain(run.validation.last),
      `best ${plain(run.validation.best)} at step ${run.validation.step.toLocaleString()}`);
  if (run.norm) tile('largest gradient', run.norm.largest === null ? 'not finite' : plain(run.norm.largest),
      `norm, in step ${run.norm.step.toLocaleString()}: replay RUN --step ${run.norm.step} looks into it`);
  tile('speed', count(last.tokens_per_s ?? 0), 'tokens a second');
  tile('tokens', count(last.tokens), 'seen so far');
  tile('time in steps', duration(run.seconds), 'without validations');
  const waits = run.waits;
  tile('waits for data', waits.steps ? duration(waits.seconds) : 'none',
       waits.steps ? `in ${count(waits.steps)} of ${count(last.step)} steps` : 'samples were always there');
  tile('peak memory', bytes(last.peak_bytes), 'of a rank, counted');
  if (last.skipped_steps) tile('skipped', count(last.skipped_steps), 'steps: gradient not finite, or no target');
  main.append(list);
};
)js";

constexpr std::string_view kCurves = R"js(
const ticksOf = (low, high, most, unit = 1) => {
  if (unit !== 1) return ticksOf(low / unit, high / unit, most).map(tick => tick * unit);
  const rough = (high - low) / most, power = 10 ** Math.floor(Math.log10(rough));
  const step = [1, 2, 2.5, 5, 10].map(factor => factor * power).find(size => size >= rough * 0.999);
  const ticks = [];
  for (let i = Math.ceil(low / step - 1e-9); i * step <= high + step * 1e-9; ++i) ticks.push(i * step + 0);  // not -0
  return ticks;
};
const pathOf = (curve, key, x, y) => curve.step.reduce((path, step, i) => {
  const value = curve[key][i];
  const isNext = i > 0 && curve[key][i - 1] !== null;
  return value === null ? path : path + `${isNext ? 'L' : 'M'}${x(step).toFixed(1)},${y(value).toFixed(1)}`;
}, '');
const bandOf = (curve, x, y) => {
  const known = curve.step.map((_, i) => i).filter(i => curve.mean[i] !== null);
  const along = (order, key) => order.map(i => `${x(curve.step[i]).toFixed(1)},${y(curve[key][i]).toFixed(1)}`);
  return 'M' + [...along(known, 'high'), ...along([...known].reverse(), 'low')].join('L') + 'Z';
};
const nearest = (steps, step) => {
  let low = 0, high = steps.length - 1;
  while (low < high) { const mid = (low + high) >> 1; if (steps[mid] < step) low = mid + 1; else high = mid; }
  return low > 0 && step - steps[low - 1] < steps[low] - step ? low - 1 : low;
};
const rangeOf = (curves, isFromZero) => {
  const of = key => curves.flatMap(curve => curve[key] ?? curve.mean).filter(value => value !== null);
  let low = of('low').reduce((a, b) => Math.min(a, b)), high = of('high').reduce((a, b) => Math.max(a, b));
  if (isFromZero) low = Math.min(0, low);
  if (high - low <= Math.abs(high) * 1e-9) { low -= Math.abs(low) * 0.1 || 1; high += Math.abs(high) * 0.1 || 1; }
  return [isFromZero ? low : low - (high - low) * 0.04, high + (high - low) * 0.04];
};
)js";

constexpr std::string_view kChart = R"js(
const drawInto = (plot, lines, format, isFromZero) => {
  const width = plot.clientWidth, height = 218, top = 8, bottom = 22;
  if (width === 0) return;
  const [low, high] = rangeOf(lines.map(line => line.curve), isFromZero);
  const ticks = ticksOf(low, high, 5, format.unit ? format.unit(high) : 1);
  const left = 10 + 6.6 * Math.max(...ticks.map(tick => format(tick).length)), right = 12;
  const first = Math.min(...lines.map(line => line.curve.step[0]));
  const last = Math.max(...lines.map(line => line.curve.step.at(-1)));
  const x = step => left + (width - left - right) * (last > first ? (step - first) / (last - first) : 0.5);
  const y = value => top + (height - top - bottom) * (1 - (value - low) / (high - low));
  const svg = make('svg:svg', {height, viewBox: `0 0 ${width} ${height}`, role: 'img',
      'aria-label': lines.map(line => line.name).join(', ')});
  for (const tick of ticks)
    svg.append(make('svg:line', {x1: left, x2: width - right, y1: y(tick), y2: y(tick), stroke: 'var(--line)'}),
               make('svg:text', {x: left - 6, y: y(tick) + 4, 'text-anchor': 'end'}, format(tick)));
  const steps = last > first ? ticksOf(first, last, Math.max(4, Math.floor(width / 110))) : [first];
  for (const step of steps.filter(Number.isInteger))
    svg.append(make('svg:text', {x: x(step), y: height - 5, 'text-anchor': step > 0.97 * last ? 'end' : 'middle'},
                    step < 1e5 ? step.toLocaleString() : count(step)));
  for (const {name, color, curve} of lines) {
    if (curve.low) svg.append(make('svg:path', {d: bandOf(curve, x, y), fill: color, opacity: 0.18}));
    svg.append(make('svg:path', {d: pathOf(curve, 'mean', x, y), fill: 'none', stroke: color, 'stroke-width': 1.8,
        'stroke-linejoin': 'round', 'data-curve': name, 'data-points': curve.mean.filter(v => v !== null).length}));
    if (curve.step.length <= 40) curve.step.forEach((step, i) => curve.mean[i] === null ||
        svg.append(make('svg:circle', {cx: x(step), cy: y(curve.mean[i]), r: 2.6, fill: color})));
  }
  const cursor = make('svg:line', {y1: top, y2: height - bottom, stroke: 'var(--muted)', visibility: 'hidden'});
  const tip = make('div', {class: 'tip', hidden: ''});
  svg.append(cursor);
  plot.replaceChildren(svg, tip);
  plot.onpointermove = plot.onpointerdown = event => {
    const part = (event.clientX - plot.getBoundingClientRect().left - left) / (width - left - right);
    const main = lines[0].curve, step = main.step[nearest(main.step, first + part * (last - first))];
    tip.replaceChildren(`step ${step.toLocaleString()}`, ...lines.flatMap(({name, color, curve}) => {
      const i = nearest(curve.step, step), value = curve.mean[i];
      const where = curve.step[i] === step ? '' : ` (step ${curve.step[i].toLocaleString()})`;
      return [make('br'), make('i', {style: `color:${color};font-style:normal`}, '● '),
              `${name} ${value === null ? 'not finite' : format(value)}${where}`];
    }));
    tip.hidden = false;
    const place = x(step);
    tip.style.left = Math.max(0, place > width / 2 ? place - tip.offsetWidth - 8 : place + 8) + 'px';
    cursor.setAttribute('x1', place); cursor.setAttribute('x2', place); cursor.setAttribute('visibility', 'visible');
  };
  plot.onpointerleave = () => { tip.hidden = true; cursor.setAttribute('visibility', 'hidden'); };
};
const chart = (grid, title, lines, format, {isWide = false, isFromZero = false} = {}) => {
  lines = lines.map(([name, key, color]) => ({name, color: `var(--${color})`, curve: run.curves[key]}))
      .filter(line => line.curve.mean.some(value => value !== null));
  if (!lines.length) return;
  const most = Math.max(...lines.map(line => line.curve.samples));
  const key = make('div', {class: 'key'}, ...(lines.length > 1 ? lines.map(line => make('span', {},
      make('i', {style: `background:${line.color}`}), line.name)) : []),
      most > 1 ? make('span', {}, `a point is the mean of ${most.toLocaleString()}, the band their range`) : null);
  const plot = make('div', {class: 'plot'});
  grid.append(make('section', {class: isWide ? 'card wide' : 'card'},
                   make('div', {class: 'top'}, make('h2', {}, title), key), plot));
  new ResizeObserver(() => requestAnimationFrame(() => drawInto(plot, lines, format, isFromZero))).observe(plot);
};
)js";

constexpr std::string_view kAll = R"js(
const memory = grid => {
  const kinds = Object.entries(run.kinds).filter(([, size]) => size > 0).sort((a, b) => b[1] - a[1]);
  if (!kinds.length) return;
  const card = make('section', {class: 'card wide'}, make('div', {class: 'top'}, make('h2', {}, 'Memory by kind'),
      make('div', {class: 'key'}, 'of rank 0, at the peak of a step')));
  for (const [kind, size] of kinds)
    card.append(make('div', {class: 'kind', 'data-kind': kind}, make('span', {}, kind.replaceAll('_', ' ')),
        make('div', {}, make('i', {style: `width:${100 * size / kinds[0][1]}%`})), make('b', {}, bytes(size))));
  grid.append(card);
};
const percent = value => `${plain(Number((100 * value).toPrecision(3)))} %`;
const lostUpdates = grid => {
  if (!run.lost_updates.length) return;
  const lines = [['f32 weights', 'lost_masters', 'first'], ['bf16 weights', 'lost_copies', 'second']];
  chart(grid, 'Updates lost in rounding', lines, percent, {isFromZero: true});
  const card = make('section', {class: 'card'}, make('div', {class: 'top'}, make('h2', {}, 'The same by group'),
      make('div', {class: 'key'}, 'the latest, of elements with a gradient')));
  for (const {group, elements, f32, bf16} of run.lost_updates)
    card.append(make('div', {class: 'lost', 'data-group': group}, make('span', {}, group),
        make('b', {}, `${percent(f32)} of f32` + (bf16 === undefined ? '' : `, ${percent(bf16)} of bf16`)),
        make('b', {}, count(elements))));
  grid.append(card);
};
const experts = grid => {
  chart(grid, 'Rows of an expert, by an even share', [['most', 'load_max', 'first'], ['least', 'load_min', 'second']],
        plain, {isFromZero: true});
  chart(grid, 'Entropy of the experts\' rows', [['least of a mixture', 'load_entropy', 'first']], plain);
  chart(grid, 'Balance loss', [['balance loss', 'balance_loss', 'first']], plain);
};
const tasks = grid => Object.entries(run.tasks).forEach(([task, metrics]) => chart(grid, `Task ${task}`,
    metrics.map((metric, i) => [metric, `task/${task}/${metric}`, i ? 'second' : 'first']), plain));
head();
tiles();
const grid = make('div', {class: 'grid'});
main.append(grid);
chart(grid, 'Loss', [['loss', 'loss', 'first'], ['validation', 'validation', 'second']], plain, {isWide: true});
tasks(grid);
chart(grid, 'Learning rate', [['learning rate', 'lr', 'first']], plain, {isFromZero: true});
chart(grid, 'Gradient norm', [['gradient norm', 'grad_norm', 'first']], plain, {isFromZero: true});
chart(grid, 'Tokens a second', [['tokens/s', 'tokens_per_s', 'first']], count, {isFromZero: true});
chart(grid, 'Peak memory of a rank', [['peak', 'peak_bytes', 'first']], bytes, {isFromZero: true});
chart(grid, 'Memory of the host', [['host', 'host_bytes', 'first']], bytes, {isFromZero: true});
if (run.waits.steps) chart(grid, 'Waits for data, ms', [['wait', 'data_wait_ms', 'first']], plain, {isFromZero: true});
experts(grid);
lostUpdates(grid);
memory(grid);
if (!run.last) main.append(make('p', {class: 'under'}, 'No step is done yet.'));
main.append(make('details', {class: 'card'}, make('summary', {}, 'Configuration'), make('pre', {}, run.config)));
)js";

std::string escaped_html(std::string_view text) {
  std::string result;
  for (const char c : text) result += c == '<' ? "&lt;" : c == '&' ? "&amp;" : std::string(1, c);
  return result;
}

}  // namespace

std::string page_of(std::string_view title, std::string_view data) {
  std::string page = "<!doctype html>\n<html lang=\"en\">\n<head>\n<meta charset=\"utf-8\">\n";
  page += "<meta name=\"generator\" content=\"zshard\">\n";
  page += "<meta name=\"viewport\" content=\"width=device-width, initial-scale=1\">\n";
  // The page asks nobody for anything.
  page +=
      "<meta http-equiv=\"Content-Security-Policy\" content=\"default-src 'none'; img-src data:; style-src "
      "'unsafe-inline'; script-src 'unsafe-inline'\">\n<link rel=\"icon\" href=\"data:,\">\n";
  page += "<title>" + escaped_html(title) + "</title>\n<style>" + std::string(kStyle) + "</style>\n</head>\n<body>\n";
  page += "<main><noscript>This page draws its curves with a script, and scripts are off.</noscript></main>\n";
  page += "<script type=\"application/json\" id=\"data\">" + std::string(data) + "</script>\n<script>";
  for (const std::string_view part : {kNumbers, kHead, kCurves, kChart, kAll}) page += part;
  return page + "</script>\n</body>\n</html>\n";
}

}  // namespace zs
