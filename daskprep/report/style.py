"""The look of a report: light or dark as the reader has it, as wide as the screen, with a search where scripts run."""

from __future__ import annotations

import base64
import hashlib

STYLE = """
:root{color-scheme:light dark;--page:#f6f7f9;--card:#fff;--ink:#1d2530;--soft:#5d6978;--line:#e2e6eb;--track:#eef1f4;
--train:#3f74b5;--validation:#d98a2b;--test:#2f9e86;--alert:#b4453c}
@media(prefers-color-scheme:dark){:root{--page:#14181d;--card:#1c2229;--ink:#e3e8ee;--soft:#97a3b1;--line:#2c343d;
--track:#252c34;--train:#6ea3e3;--validation:#e5a552;--test:#53c4a8;--alert:#ee8b80}}
*{box-sizing:border-box}
html{-webkit-text-size-adjust:100%;scroll-behavior:smooth}
@media(prefers-reduced-motion:reduce){html{scroll-behavior:auto}}
body{margin:0;background:var(--page);color:var(--ink);
font:15px/1.5 system-ui,-apple-system,"Segoe UI",Roboto,sans-serif;overflow-wrap:break-word}
main{max-width:1080px;margin:0 auto;padding:32px 16px 48px}
h1{font-size:26px;line-height:1.2;margin:0 0 4px;letter-spacing:-.01em}
h2{font-size:18px;margin:40px 0 12px}
h3{font-size:17px;margin:0;display:inline}
p{margin:0}
a{color:var(--train);text-decoration:none}
a:hover,a:focus-visible{text-decoration:underline}
.soft,.note,.scale,.axis,figcaption,.legend{color:var(--soft);font-size:13px}
.tiles{display:grid;grid-template-columns:repeat(auto-fit,minmax(130px,1fr));gap:12px;margin:20px 0}
.tile,.card{background:var(--card);border:1px solid var(--line);border-radius:10px}
.tile{padding:12px 16px}
.tile b{display:block;font-size:22px;font-weight:600;font-variant-numeric:tabular-nums;line-height:1.3}
.card{padding:16px 20px;margin:0 0 16px}
section.card{scroll-margin-top:12px;content-visibility:auto;contain-intrinsic-size:auto 380px}
.scroll{overflow-x:auto}
.scroll th,.scroll td{white-space:nowrap!important}.scroll wbr{display:none}
.scroll>table{width:100%}
.overview svg{margin-left:auto}
.overview tr>:nth-child(2){text-align:left}
.alerts{list-style:none;font-size:14px}.alerts li+li{margin-top:6px}.alerts .kind{margin:0 8px 0 0;color:var(--alert)}
.kind{display:inline-block;margin-left:8px;padding:0 8px;border-radius:9px;background:var(--track);color:var(--soft);
font-size:12px;line-height:20px;vertical-align:2px}
.about{margin:6px 0 0;display:flex;flex-wrap:wrap;gap:0 20px;font-size:14px;color:var(--soft)}
.about b{color:var(--ink);font-weight:600}
.about .alert,.about .alert b{color:var(--alert)}
.charts{display:grid;grid-template-columns:repeat(auto-fit,minmax(min(100%,400px),1fr));gap:20px 36px;margin-top:14px;
align-items:start}
figure{margin:0;min-width:0}
.chart.wide{grid-column:1/-1}
.chart>figcaption{color:var(--ink);font-weight:600;font-size:14px;margin-bottom:4px}
.note{margin-top:6px}
svg{display:block;width:100%;height:100%;overflow:hidden}
.bars th[scope=row]{overflow:hidden;text-overflow:ellipsis;overflow-wrap:normal}
.plot{height:140px;border-bottom:1px solid var(--line)}
.axis{position:relative;height:20px}
.axis span{position:absolute;transform:translateX(-50%);white-space:nowrap;font-variant-numeric:tabular-nums}
.axis .start{transform:none}
.axis .end{transform:translateX(-100%)}
.scale{text-align:right;font-size:12px}
g.train,g.after,.wave{fill:var(--train)}g.before{fill:var(--soft)}g.validation{fill:var(--validation)}g.test{fill:var(--test)}
rect.hover{fill:transparent}
g:hover>rect.hover{fill:var(--track)}
.line{fill:none;stroke-width:1.6;vector-effect:non-scaling-stroke;stroke-linejoin:round}
.line.train{stroke:var(--train)}.line.validation{stroke:var(--validation)}.line.test{stroke:var(--test)}
.area{opacity:.18;fill:var(--train)}.area.validation{fill:var(--validation)}.area.test{fill:var(--test)}
.key{white-space:nowrap}
.key::before{content:"";display:inline-block;width:9px;height:9px;border-radius:2px;margin-right:6px;
background:var(--train)}
.key.before::before{background:var(--soft)}
.key.validation::before{background:var(--validation)}.key.test::before{background:var(--test)}
.legend{display:flex;flex-wrap:wrap;gap:4px 18px;margin:0 0 12px}
table{border-collapse:collapse;width:100%;font-size:13px;font-variant-numeric:tabular-nums}
th,td{padding:4px 0 4px 12px;text-align:right;font-weight:400;vertical-align:top;border-bottom:1px solid var(--line)}
th:first-child,td:first-child{padding-left:0;text-align:left}
tr:last-child>*{border-bottom:0}
th[scope=col],.facts th,.grid th{color:var(--soft)}
.grid th[scope=row]{color:var(--ink)}
.bars{table-layout:fixed}
.bars tr>:first-child{width:25%}
.bars .bar{width:32%}
.bars td.bar{height:26px;padding-top:7px}
.bars.of1 tr>:first-child{width:40%}
.bars td.bar svg{height:14px}
.bars td b{font-weight:600;white-space:nowrap;display:block;line-height:1.25}
.bars td span{color:var(--soft);font-size:12px;display:block;line-height:1.25}
.bars.of1 td.bar svg{height:10px}
.pictures{display:grid;grid-template-columns:repeat(auto-fill,minmax(112px,1fr));gap:12px}
.pictures img{width:100%;display:block;border-radius:6px;background:var(--track)}
.heats{display:grid;grid-template-columns:repeat(auto-fit,minmax(min(100%,220px),1fr));gap:12px}
.heats img{width:100%;height:110px;display:block;border-radius:6px;image-rendering:auto}
.heats .plot{height:90px;border:0;background:var(--track);border-radius:6px;padding:6px}
footer{margin-top:32px}
@media(max-width:560px){main{padding-top:20px}.card{padding:14px}h1{font-size:22px}
.bars,.bars tbody{display:block}
.bars tr{display:grid;grid-template-columns:repeat(3,1fr);gap:0 12px;border-bottom:1px solid var(--line);padding:6px 0}
.bars tr:last-child{border:0}
.bars tr>*{border:0;padding:0;text-align:left;width:auto!important}
.bars th[scope=row],.bars td.bar{grid-column:1/-1}
.bars td.bar{height:22px;padding:3px 0 4px}
.bars th[scope=col]:empty{display:none}
.bars td b,.bars td span{display:inline}
.bars td span{margin-left:6px}}
.search{font:inherit;width:100%;max-width:320px;margin:0 0 8px;padding:6px 10px;color:inherit;background:var(--page);
border:1px solid var(--line);border-radius:8px}
@media print{.search{display:none}
body{background:#fff}.card,figure{break-inside:avoid}section.card{content-visibility:visible}}
"""

# The field is hidden until this runs, which it does neither in notebooks nor where readers turn scripts off.
SCRIPT = """
const field=document.querySelector(".search"),rows=[...document.querySelectorAll(".overview tr")].slice(1);
field.oninput=()=>{for(const row of rows){const [name,type]=[...row.cells].map(cell=>cell.textContent.toLowerCase());
row.hidden=!`${name} ${type}`.includes(field.value.trim().toLowerCase())}};
field.hidden=false;
"""
_DIGEST = base64.b64encode(hashlib.sha256(SCRIPT.encode()).digest()).decode()
# Whatever a value might hold: nothing but the script above runs, and nothing is fetched.
POLICY = f"default-src 'none'; img-src data:; style-src 'unsafe-inline'; script-src 'sha256-{_DIGEST}'"
