"""The look of a report: light or dark as the reader has it, as wide as the screen, with a search where scripts run."""

from __future__ import annotations

import base64
import hashlib
from pathlib import Path

STYLE = Path(__file__).with_name("report.css").read_text(encoding="utf-8")

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
