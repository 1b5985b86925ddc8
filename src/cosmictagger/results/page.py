"""The style of the report: a style sheet for light and dark screens, and for paper."""

STYLE = """
:root {
  color-scheme: light dark;
  --paper: #ffffff; --ink: #1c2126; --soft: #5b6670; --line: #dfe4e8; --card: #f6f8f9;
  --right: #0072b2; --wrong: #d55e00; --met: #00704f; --missed: #b04a00;
}
@media (prefers-color-scheme: dark) {
  :root {
    --paper: #14181c; --ink: #e6eaed; --soft: #9aa6b0; --line: #2f373e; --card: #1c2227;
    --right: #56b4e9; --wrong: #e69f00; --met: #4cc9a0; --missed: #ffa657;
  }
}
* { box-sizing: border-box; }
body {
  margin: 0; background: var(--paper); color: var(--ink);
  font: 16px/1.5 system-ui, -apple-system, "Segoe UI", "DejaVu Sans", sans-serif;
}
main { max-width: 72rem; margin: 0 auto; padding: 2rem 1.25rem 4rem; }
a { color: var(--right); overflow-wrap: anywhere; }
h1 { font-size: 1.9rem; line-height: 1.2; margin: 0 0 .3rem; }
h2 { font-size: 1.25rem; margin: 2.4rem 0 .7rem; }
h3 { font-size: 1rem; margin: 1.8rem 0 .5rem; }
p { margin: .6rem 0; color: var(--soft); }
.lead { font-size: 1.1rem; color: var(--ink); }
.scroll { overflow-x: auto; }
table { border-collapse: collapse; font-variant-numeric: tabular-nums; }
th, td { padding: .4rem .9rem; text-align: left; border-bottom: 1px solid var(--line); }
th:first-child, td:first-child { padding-left: 0; }
th { font-weight: 600; color: var(--soft); font-size: .88rem; }
.number { text-align: right; white-space: nowrap; }
.wide { width: 16rem; }
code { font: .9em ui-monospace, "DejaVu Sans Mono", monospace; overflow-wrap: anywhere; }
.met { color: var(--met); } .missed { color: var(--missed); }
.cell { display: block; padding: .3rem .6rem; border-radius: 4px; }
.cell small { display: block; }
.cell.right {
  background: color-mix(in srgb, var(--right) calc(var(--depth) * .35), transparent);
}
.cell.wrong {
  background: color-mix(in srgb, var(--wrong) calc(var(--depth) * .45), transparent);
}
.bar {
  display: block; height: .75rem; width: var(--length); min-width: 1px;
  background: var(--right); border-radius: 2px;
}
img {
  display: block; width: 100%; height: auto; background: #ffffff;
  border: 1px solid var(--line); border-radius: 6px;
}
@media (max-width: 40rem) {
  main { padding: 1.2rem .8rem 3rem; } h1 { font-size: 1.5rem; }
  th, td { padding: .4rem .6rem; } #events td, .missed, .met { white-space: nowrap; }
  .wide { width: 5rem; } .picture img { width: 52rem; max-width: none; }
}
@media print { main { max-width: none; } section { break-inside: avoid; } }
"""
