"""The looks of the laboratory's page, in light and in dark."""

from __future__ import annotations

STYLE = """
:root {
  color-scheme: light dark;
  --paper: #ffffff; --ink: #1c2430; --dim: #5d6875; --rule: #d9dfe6; --row: #f6f8fa;
  --good: #11693b; --fair: #7a5b00; --poor: #b3261e;
  --c0: #0b6e8f; --c1: #c4501b; --c2: #5a7d1f; --c3: #8f3f97; --c4: #9a6a00; --c5: #2f55c8; --c6: #b3266a;
  --c7: #4f5b66;
}
@media (prefers-color-scheme: dark) {
  :root {
    --paper: #14181d; --ink: #e4e9ef; --dim: #9aa6b4; --rule: #303944; --row: #1a2027;
    --good: #6fd09a; --fair: #e3b25b; --poor: #ff8f86;
    --c0: #6cc5e3; --c1: #f39a6b; --c2: #a9cf6a; --c3: #d79be0; --c4: #e3b25b; --c5: #8fabff; --c6: #f58cbb;
    --c7: #b7c1cb;
  }
}
body { margin: 0; background: var(--paper); color: var(--ink); font: 15px/1.5 system-ui, sans-serif; }
main { max-width: 1120px; margin: 0 auto; padding: 32px 24px 64px; }
h1 { font-size: 26px; line-height: 1.25; margin: 0 0 16px; }
h2 { font-size: 19px; margin: 40px 0 8px; }
p, li { max-width: 78ch; }
code { font: 13px ui-monospace, Menlo, Consolas, "DejaVu Sans Mono", monospace; overflow-wrap: anywhere; }
.wide { overflow-x: auto; margin: 12px 0; }
table { border-collapse: collapse; width: 100%; font-size: 13.5px; }
td.number .paper { white-space: normal; }
table.main { min-width: 1080px; }
dt { font-weight: 600; }
dd { margin: 0 0 6px; max-width: 78ch; }
th, td { text-align: left; vertical-align: top; padding: 6px 12px 6px 0; border-bottom: 1px solid var(--rule); }
thead th { vertical-align: bottom; color: var(--dim); font-weight: 600; }
tbody tr:hover { background: var(--row); }
.level, td.number { white-space: nowrap; }
th[scope=row] { min-width: 150px; }
.number { text-align: right; font-variant-numeric: tabular-nums; }
.option { font-weight: 400; color: var(--ink); }
.paper, .none { font-size: 12px; font-weight: 400; color: var(--dim); }
.level5, .level4 { color: var(--good); font-weight: 600; }
.level3 { color: var(--good); }
.level2, .level1 { color: var(--fair); }
.level0, .bad { color: var(--poor); }
.bad { font-weight: 700; }
.quiet { font-size: 12px; color: var(--fair); }
.notes { color: var(--dim); font-size: 13.5px; padding-left: 20px; }
figure { margin: 12px 0; }
.plot { display: block; width: 100%; min-width: 720px; max-width: 1000px; height: auto; }
.plot text { font: 12px system-ui, sans-serif; fill: var(--ink); }
.plot .tick { fill: var(--dim); font-size: 11.5px; }
.plot .axis { fill: var(--dim); }
.plot .grid { stroke: var(--rule); }
.plot .line { fill: none; stroke-width: 2; stroke-linejoin: round; }
.plot .leader { fill: none; stroke-width: 1; opacity: 0.55; }
.plot .label { font-size: 11.5px; }
details { margin: 8px 0; }
summary { cursor: pointer; color: var(--dim); }
""" + "\n".join(
    f".plot .line.c{n}, .plot .leader.c{n} {{ stroke: var(--c{n}); }}"
    f" .plot .dot.c{n}, .plot .label.c{n} {{ fill: var(--c{n}); }}"
    for n in range(8)
)
