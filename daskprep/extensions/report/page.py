"""Report of a dataset as one HTML page: splits, alerts, distributions, associations and sizes on disk."""

from __future__ import annotations

import base64
import copy
import hashlib
import os
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import groupby, islice
from pathlib import Path
from typing import Any

import numpy as np

from daskprep.columns.display import (
    Markup,
    Table,
    bar_chart,
    element,
    format_bytes,
    format_count,
    format_share,
    join,
    join_names,
    truncate,
)
from daskprep.dataset import Dataset, Split
from daskprep.dataset.describing import read_first_rows
from daskprep.errors import ConfigError
from daskprep.extensions.report.charts import (
    Bars,
    Chart,
    Histogram,
    TableChart,
    draw,
    draw_bar,
    draw_legend,
    draw_table,
)
from daskprep.extensions.report.findings import Column, RowSample, SummariesByOutput, summarize_findings
from daskprep.extensions.report.reporters import SUMMARY, choose_reporter, count_source_rows, gather, list_columns
from daskprep.extensions.summary_html import describe_learned, make_learned_cells
from daskprep.features import Learned
from daskprep.storage import Folder
from daskprep.storage.arrays import folder_name
from daskprep.storage.security import path_text
from daskprep.storage.tables import REJECTS

_MAX_FEATURES = 200  # about 6 KB of the page each
_MAX_FACT_CHARACTERS = 300
_MAX_NAMED = 40
_MAX_ALERTS, _MAX_LOSSES, _MAX_PAIRS, _MIN_STRENGTH = 40, 30, 12, 0.1
_MAX_SMALL_BARS = 32
_TABLES, _OTHER_FILES = "tables of scalar outputs", "fitted state and metadata"

STYLE = Path(__file__).with_name("report.css").read_text(encoding="utf-8")

# The search field is hidden until this runs, because notebooks and browsers without JavaScript do not run it.
_SCRIPT = """
const field=document.querySelector(".search"),rows=[...document.querySelectorAll(".overview tr")].slice(1);
field.oninput=()=>{for(const row of rows){const [name,type]=[...row.cells].map(cell=>cell.textContent.toLowerCase());
row.hidden=!`${name} ${type}`.includes(field.value.trim().toLowerCase())}};
field.hidden=false;
"""
SEARCH = element("script", Markup(_SCRIPT))
_DIGEST = base64.b64encode(hashlib.sha256(_SCRIPT.encode()).digest()).decode()
# Values of a dataset are untrusted: only the script above may run, and nothing is fetched.
_SOURCES = "default-src 'none'; img-src data:; media-src data:; style-src 'unsafe-inline'"
_POLICY = f"{_SOURCES}; script-src 'sha256-{_DIGEST}'"


def page(dataset: Dataset) -> tuple[str, dict[str, Any]]:
    """Return the report as an HTML page, and its findings."""
    shown = set(islice(dataset.features, _MAX_FEATURES))
    columns = [column for column in list_columns(dataset) if column.name in shown]
    splits = list(dataset.splits.values())
    sample = RowSample(columns, len(splits[0]))
    summaries = gather(splits, columns, sample)
    findings = summarize_findings(dataset, columns, summaries, sample)
    charts = {item.output.name: choose_reporter(item).charts(item, summaries[item.output.name]) for item in columns}
    by_name = {name: list(group) for name, group in groupby(columns, key=lambda column: column.name)}
    title = truncate(dataset.url.rstrip("/").rpartition("/")[2] or dataset.url)
    body = element(
        "main",
        element("h1", title),
        element("p", f"Dataset at {truncate(dataset.url, 300)}, version {dataset.version}", class_="soft"),
        _tiles(dataset),
        *_alerts(findings),
        element("h2", "First rows"),
        _first_rows(splits[0]),
        element("h2", "Splits"),
        _splits(dataset),
        *_balance(dataset, columns, summaries),
        element("h2", "Overview"),
        _overview(dataset, findings, {name: charts[outputs[0].output.name] for name, outputs in by_name.items()}),
        *_losses(findings["losses"] or ()),
        *_associations(findings),
        element("h2", "Features"),
        draw_legend(dataset.splits) if len(splits) > 1 else Markup(),
        *(
            _feature_card(index, dataset, feature_columns, charts, facts["missing_by_split"])
            for index, (feature_columns, facts) in enumerate(zip(by_name.values(), findings["features"], strict=True))
        ),
        element("h2", "Sizes on disk"),
        _sizes(dataset),
        *([] if dataset.timings is None else [element("h2", "Time of the write"), _times(dataset.timings)]),
        _footer(columns),
        SEARCH,
    )
    head = element(
        "head",
        element("meta", charset="utf-8"),
        element("meta", name="viewport", content="width=device-width, initial-scale=1"),
        element("meta", name="color-scheme", content="light dark"),
        element("meta", http_equiv="Content-Security-Policy", content=_POLICY),
        # Without an icon, browsers would request one from the server.
        element("link", rel="icon", href="data:,"),
        element("title", f"{title}: report"),
        element("style", Markup(STYLE)),
    )
    return f"<!doctype html>\n{element('html', head, element('body', body), lang='en')}\n", findings


def _tiles(dataset: Dataset) -> Markup:
    """Return a tile for each total: rows, features, bytes, files."""
    rows = sum(dataset.layout.rows.values())
    tiles = {
        "rows": f"{rows:,}",
        "features": f"{len(dataset.features):,}",
        "on disk": format_bytes(sum(entry.bytes for _, entry in dataset.file_entries)),
        "a row, uncompressed": format_bytes(dataset.layout.row_bytes),
        "files": f"{len(dataset.file_entries):,}",
    }
    shown = (element("div", element("b", text), name, class_="tile") for name, text in tiles.items())
    return element("div", *shown, class_="tiles")


def _splits(dataset: Dataset) -> Markup:
    """Return a table of the splits: rows, share, blocks, bytes."""
    layout, total_rows = dataset.layout, sum(dataset.layout.rows.values())
    stored = Counter[str]()
    for name, entry in dataset.file_entries:
        stored[name.partition("/")[0]] += entry.bytes
    rows = [["split", "rows", "share", "blocks", "on disk"]]
    for split, row_count in layout.rows.items():
        counts = [f"{row_count:,}", format_share(row_count, total_rows), f"{layout.blocks(split):,}"]
        rows.append([split, *counts, format_bytes(stored[split])])
    compression = "not compressed" if layout.compression == "none" else f"compressed by {layout.compression}"
    notes = [f"A block has {format_count(layout.block_rows, 'row')}; files are {compression}."]
    if rejected := sum(entry.rows or 0 for name, entry in dataset.file_entries if name == REJECTS):
        unusable = format_count(rejected, "row")
        notes.append(f"{unusable} of the source could not be used: rejects() lists them with reasons.")
    return _card(draw_table(rows, "grid"), " ".join(notes))


def _first_rows(split: Split) -> Markup:
    """Return a table of first rows, and a note on what it lacks."""
    head, *rows = read_first_rows(split)
    note = f"The first rows of {split.name}, without images and audio; of wide tables, the first columns."
    if split.dataset.manifest.missing_cells is None:
        note += " Cells that equal the fill value of a column with missing cells may be imputed."
    return _card(element("div", Table(head, rows, tuple, "row").html(), class_="scroll"), note)


def _links(findings: Mapping[str, Any]) -> dict[str | None, Markup]:
    """Return a link to the card of each feature, and a space."""
    names = enumerate(one["name"] for one in findings["features"])
    return {name: join([element("a", truncate(name), href=f"#feature-{index}"), " "]) for index, name in names}


def _alerts(findings: Mapping[str, Any]) -> list[Markup]:
    """Return the first alerts as a list; nothing without alerts."""
    links, alerts = _links(findings), findings["alerts"]
    shown = [
        element("li", element("span", one["kind"], class_="kind"), links.get(one["feature"], ""), one["text"])
        for one in alerts[:_MAX_ALERTS]
    ]
    if len(alerts) > len(shown):
        more = format_count(len(alerts) - len(shown), "more alert")
        shown.append(element("li", f"and {more}: to_dict() returns all"))
    return [element("h2", "Alerts"), element("ul", *shown, class_="card alerts")] if shown else []


def _overview(dataset: Dataset, findings: Mapping[str, Any], charts: Mapping[str, Sequence[Chart]]) -> Markup:
    """Return a card with a table row for each feature."""
    links, others = _links(findings), list(dataset.splits)[1:]
    drifting = [f"drift in {split}" for split in others]
    with_target = ["with target"] * bool(dataset.targets)
    rows: list[list[str]] = [["feature", "type", "missing", "distinct", "distribution", *with_target, *drifting]]
    for one in findings["features"]:
        row = [links[one["name"]], one["type"] + ", target" * one["target"], format_share(one["missing"], one["rows"])]
        row += ["" if one["distinct"] is None else f"{one['distinct']:,}", _small_bars(charts[one["name"]])]
        values = [*[one["association_with_target"]] * bool(with_target), *(one["drift"].get(split) for split in others)]
        rows.append(row + ["" if value is None else f"{value:.2f}" for value in values])
    hidden = len(dataset.features) - len(findings["features"])
    note = "Drift is the population stability index against the first split. " * bool(others)
    note += f"{format_count(hidden, 'more feature')} are not shown." * (hidden > 0)
    label = "Search features"
    field = element("input", type="search", class_="search", placeholder=label, aria_label=label, hidden="")
    return _card(join([field, element("div", draw_table(rows, "grid overview"), class_="scroll")]), note)


def _small_bars(charts: Sequence[Chart]) -> Markup:
    """Return a feature's first chart as small bars; empty for charts without counts."""
    if not charts or not isinstance(charts[0], Histogram | Bars):
        return Markup()
    counts = np.asarray(next(iter(charts[0].counts.values())))
    bin_width = max(1, -(-len(counts) // _MAX_SMALL_BARS))
    return bar_chart([int(counts[start : start + bin_width].sum()) for start in range(0, len(counts), bin_width)])


def _losses(losses: Sequence[Mapping[str, Any]]) -> list[Markup]:
    """Return a heading and a table of the largest losses, and a note on the rest; [] without losses."""
    shown = sorted(losses, key=lambda loss: -loss["share"])[:_MAX_LOSSES]
    rows = [["feature", "split", "cause", "cells", "share"]]
    for one in shown:
        texts = [truncate(one["feature"]), one["split"], one["cause"], f"{one['cells']:,}"]
        rows.append([*texts, format_share(one["share"], 1)])
    more = len(losses) - len(shown)
    note = f"{format_count(more, 'more loss')}: to_dict() returns all." * (more > 0)
    return [element("h2", "Losses"), _card(draw_table(rows, "grid"), note)] if shown else []


def _associations(findings: Mapping[str, Any]) -> list[Markup]:
    """Return bars for the strongest pairs; nothing without pairs."""
    rows = [
        _bar_row(f"{truncate(one['first'])}, {truncate(one['second'])}", f"{strength:.2f}", one["measure"], strength)
        for one in findings["associations"][:_MAX_PAIRS]
        if (strength := one["strength"]) >= _MIN_STRENGTH
    ]
    rows_read = format_count(findings["sampled_rows"], "training row")
    note = f"The strongest pairs of numbers and classes in {rows_read}, chosen at random, from 0 to 1."
    return [element("h2", "Associations"), _card(_bar_table(rows), note)] if rows else []


def _card(content: Markup, note: str) -> Markup:
    return element("div", content, element("p", note, class_="note"), class_="card")


def _feature_card(
    index: int,
    dataset: Dataset,
    columns: Sequence[Column],
    charts: Mapping[str, Sequence[Chart]],
    missing: Mapping[str, int] | None,
) -> Markup:
    """Return the section of a feature; `missing` are its missing cells by split, or None."""
    name, rows = columns[0].name, dataset.layout.rows
    shares = missing and [f"{missing[split]:,} ({format_share(missing[split], rows[split])})" for split in rows]
    in_summary = False
    drawn = []
    for column in columns:
        level = column.output.name.removeprefix(name).removeprefix("_")
        suffix = f" ({level})" if level else ""
        for chart in charts[column.output.name]:
            shown = replace(chart, title=chart.title + suffix)
            if isinstance(shown, TableChart) and shares and chart.title == SUMMARY:
                shown, in_summary = replace(shown, rows=[*shown.rows, ["missing", *shares]]), True
            drawn.append(draw(shown))
    by_split = []
    if missing and shares and not in_summary and len(rows) > 1 and any(missing.values()):
        text = ", ".join(f"{share} in {split}" for split, share in zip(rows, shares, strict=True))
        by_split = [element("p", f"Missing by split: {text}", class_="soft")]
    return element(
        "section",
        element("h3", truncate(name)),
        element("span", columns[0].feature.kind + ", target" * (name in dataset.targets), class_="kind"),
        *(_output_facts(column, dataset.learned[name]) for column in columns),
        *by_split,
        element("div", *drawn, class_="charts"),
        id=f"feature-{index}",
        class_="card",
    )


def _output_facts(column: Column, learned: Learned) -> Markup:
    """Return paragraphs on type, cells and state of an output."""
    shape = " x ".join(f"{one:,}" for one in column.output.shape)
    name = f"{truncate(column.output.name)}: " if column.output.name != column.name else ""
    parts = [join([name, element("b", column.output.dtype), f" ({shape})" if shape else ""])]
    rows, missing, unreadable = make_learned_cells(column.feature, learned)
    parts += [join([f"learned from {rows} rows"]), join([element("b", "missing"), f" {missing}"])]
    if learned.invalid:
        parts.append(element("span", element("b", "unreadable"), f" {unreadable}", class_="alert"))
    lines = [element("p", *(element("span", part) for part in parts), class_="about")]
    if learned_facts := "; ".join(describe_learned(column.learned)):
        lines.append(element("p", f"Learned: {truncate(learned_facts, _MAX_FACT_CHARACTERS)}", class_="soft"))
    return join(lines)


def _balance(dataset: Dataset, columns: Sequence[Column], summaries: SummariesByOutput) -> list[Markup]:
    """Return the classes before and after balancing; [] without it, or for several datasets."""
    balance = dataset.metadata.get("balance")
    if balance is None or "train" not in dataset.splits or len(dataset.manifests) > 1:
        return []  # several datasets may have the same row numbers
    classes = [column for column in columns if column.feature.semantic_type == "classes"]
    distinct, before = count_source_rows(dataset["train"], classes)
    charts = []
    # The balanced column is shown first.
    for column in sorted(classes, key=lambda one: (one.feature.column or one.name) != balance["column"]):
        by_stage = {"before": before[column.output.name], "after": summaries[column.output.name]["train"]}
        shown = choose_reporter(column).charts(column, by_stage)
        charts += [draw(replace(chart, title=f"Training rows of {truncate(column.name)}")) for chart in shown]
    parameters = ", ".join(f"{key}={value!r}" for key, value in balance.items() if key != "type" and value is not None)
    notes = [f"{balance['type'].capitalize()}: {truncate(parameters, _MAX_FACT_CHARACTERS)}."]
    if distinct < len(dataset["train"]):
        now = format_count(len(dataset["train"]), "training row")
        notes.append(f"{format_count(distinct, 'row')} of the source are {now} now.")
    if balance["type"] == "undersample":
        notes.append("Rows that were left out are not in the dataset: only the kept rows are counted.")
    note, drawn = element("p", " ".join(notes), class_="note"), element("div", *charts, class_="charts")
    return [element("h2", "Classes before and after balancing"), element("div", note, drawn, class_="card")]


def _sizes(dataset: Dataset) -> Markup:
    """Return bars for bytes of matrices, tables and other files."""
    folders = {folder_name(output.name): output.name for output in dataset.layout.matrices}
    tables = [output.name for output in dataset.layout.outputs if output not in dataset.layout.matrices]
    stored = Counter[str]()
    for name, entry in dataset.file_entries:
        _, kind, *rest = [*name.split("/"), "", ""]
        if kind == "arrays.zarr":
            stored[folders.get(rest[0], _OTHER_FILES)] += entry.bytes
        else:
            stored[_TABLES if kind == "table" else _OTHER_FILES] += entry.bytes
    [(_, max_bytes)] = stored.most_common(1)
    rows = []
    for name, nbytes in stored.most_common():
        raw = next((output.row_bytes for output in dataset.layout.matrices if output.name == name), 0)
        uncompressed = raw * sum(dataset.layout.rows.values())
        comparison = f"{uncompressed / nbytes:,.1f} times smaller than in memory" if uncompressed > nbytes else ""
        rows.append(_bar_row(truncate(name), format_bytes(nbytes), comparison, nbytes / max_bytes))
    return _card(_bar_table(rows), f"The tables hold {join_names(['row_id', *tables], _MAX_NAMED)}.")


def _bar_row(name: str, figure: str, remark: str, length: float) -> Markup:
    figures = element("td", element("b", figure), element("span", remark))
    return element("tr", element("th", name, scope="row"), element("td", draw_bar(length), class_="bar"), figures)


def _bar_table(rows: Sequence[Markup]) -> Markup:
    return element("table", element("tbody", *rows), class_="bars of1 sizes")


def _times(timings: Mapping[str, float]) -> Markup:
    longest = max([*timings.values(), 1e-9])
    rows = [_bar_row(stage, f"{seconds:,.2f} s", "", seconds / longest) for stage, seconds in timings.items()]
    return element("div", _bar_table(rows), class_="card")


def _footer(columns: Sequence[Column]) -> Markup:
    """Return a note on the rows counted, and the media sampled."""
    sampled = [column.output.name for column in columns if choose_reporter(column).measure is None]
    text = "All rows of all splits were counted, as encoded."
    if sampled:
        media = join_names(sampled, _MAX_NAMED)
        text = f"All rows were counted, as encoded. Of images and audio ({media}), only samples were read."
    return element("footer", element("p", text, class_="soft"))


_NOTEBOOK_HEIGHT = 640  # pixels


@dataclass(frozen=True, repr=False)
class Report:
    """HTML page that needs no other file and no network, and works without scripts.

    Attributes
    ----------
    html : str
        The page.
    """

    html: str
    _findings: Mapping[str, Any] = field(default_factory=dict)

    def to_dict(self) -> dict[str, Any]:
        """Return all findings, as in docs/report.schema.json."""
        return copy.deepcopy(dict(self._findings))

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write the page to a file atomically; ConfigError without a file name."""
        folder, slash, name = path_text(path, "file").rpartition("/")
        if not name:
            raise ConfigError(f"{os.fspath(path)!r} is not a file name: add one, such as report.html")
        Folder.open(folder or slash or ".").write(name, self.html.encode())

    def __repr__(self) -> str:
        return f"Report of {format_bytes(len(self.html.encode()))}: save(path) writes it, to be opened in a browser"

    def _repr_html_(self) -> str:
        # A frame separates the styles of the page and of the notebook.
        style = f"width:100%;height:{_NOTEBOOK_HEIGHT}px;border:1px solid rgba(128,128,128,0.4);border-radius:6px"
        shown = self.html.replace(SEARCH, "")  # the sandbox would log an error for the script
        return element("iframe", srcdoc=shown, style=style, sandbox="", title="Report")


def make_report(dataset: Dataset, path: str | os.PathLike[str] | None = None) -> Report:
    """Return the report of a dataset, written to any `path`."""
    report = Report(*page(dataset))
    if path is not None:
        report.save(path)
    return report
