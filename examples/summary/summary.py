"""python summary.py checkpoints 0:20000 sources.jsonl > summary.md: what a model was trained on, as Markdown.

The figures of the public summary of training content (Regulation (EU) 2024/1689, Article 53(1)(d), template of July
2025), each with its query. A form with figures, no legal advice: docs/queries.md says what sources.jsonl holds.
"""

import json
import sys
from pathlib import Path

import pyarrow as pa

from conceptloader.trace import open_run, query

SECTIONS = {  # of the template
    "public": "2.1", "licensed": "2.2.1", "third-party": "2.2.2", "crawled": "2.3", "user": "2.4", "synthetic": "2.5",
    "other": "2.6",
}  # fmt: skip
KEYS = "dataset", "section", "modality", "name", "link"
DOMAIN = "coalesce(metadata->>'domain', lower(regexp_extract(metadata->>'url', '^[a-z]+://([^/:?#]+)', 1)))"
COLUMNS = "document, tokens, seen, section, modality, name, link"
USED = f"used as (select {COLUMNS} from documents join sources using (dataset) where seen > 0)"
CRAWLED = f"""used as (
  select document, tokens, seen, {DOMAIN} as domain
  from documents join sources using (dataset) where seen > 0 and section = '2.3 crawled'
)"""
SIZES = "count(document) as documents, sum(tokens) as tokens, sum(seen) as seen"
DOMAINS = f"domains as (select domain, {SIZES} from used where domain != '' group by domain)"
FIGURES = {
    "1.3 Training data size": f"""with {USED}
select modality, {SIZES}, case
  when modality != 'text' then null
  when sum(tokens) < 1e9 then 'less than 1 billion tokens'
  when sum(tokens) <= 1e13 then '1 billion to 10 trillion tokens'
  else 'more than 10 trillion tokens' end as range
from used group by modality order by modality""",
    "2 Data sources": f"""with {USED}
select section, modality, name, link, {SIZES},
  round(100 * sum(tokens) / sum(sum(tokens)) over (partition by section, modality), 2) as percent,
  case when section = '2.1 public' then percent > 3 end as large
from used group by section, modality, name, link order by section, modality, tokens desc, name""",
}
OF_DOMAINS = {
    "2.3 Data crawled and scraped": f"""with {CRAWLED},
{DOMAINS}
select (select count(*) from domains) as domains, {SIZES},
  sum(tokens) - coalesce((select sum(tokens) from domains), 0) as without_domain
from used""",
    "2.3 The top 10 % of domains, by size": f"""with {CRAWLED},
{DOMAINS}
select domain, documents, tokens, seen from domains
qualify row_number() over (order by tokens desc, domain) <= ceil(count(*) over () / 10)
order by tokens desc, domain""",
}


def summary(log, steps, sources):
    """The Markdown of steps that a run log has."""
    run, rows = open_run(log=log), [json.loads(line) for line in Path(sources).read_text("utf-8").splitlines()]
    found = query(run, "select dataset from datasets order by 1", steps=steps)["dataset"].to_pylist()
    wrong = [row for row in rows if row.get("section") not in SECTIONS or not {*KEYS} <= row.keys()]
    if wrong or sorted(row["dataset"] for row in rows) != found:
        fix = f"one row for each of {', '.join(found)}, with {', '.join(KEYS)}; section: {', '.join(SECTIONS)}"
        raise SystemExit(f"{sources}: found {wrong or rows}, expected {fix}")
    for row in rows:
        row["section"] = f"{SECTIONS[row['section']]} {row['section']}"
    lines = [f"# Training content of steps {steps[0]:,} to {steps[1] - 1:,}", ""]
    for title, text in {
        **FIGURES,
        **(OF_DOMAINS if any(row["section"] == "2.3 crawled" for row in rows) else {}),
    }.items():
        table = query(run, text, steps=steps, tables={"sources": pa.Table.from_pylist(rows)})
        cells = [table.column_names, ["---"] * table.num_columns]
        cells += [[_shown(value) for value in row.values()] for row in table.to_pylist()]
        lines += [f"## {title}", "", *(f"| {' | '.join(row)} |" for row in cells), "", "```sql", text, "```", ""]
    return "\n".join(lines)


def _shown(value):
    if isinstance(value, bool):
        return "yes" if value else "no"
    return f"{value:,}" if isinstance(value, int | float) else "" if value is None else str(value).replace("|", "\\|")


if __name__ == "__main__":
    given, words, table = sys.argv[1:]
    first, _, stop = words.partition(":")
    print(summary(given, (int(first), int(stop)), table))
