"""examples/summary: its figures against counts by hand, over a run whose steps read each document at most once."""

import json
import subprocess
import sys

import conceptloader as cl
from tests.raises import cells

SOURCES = """
web | crawled | text | our crawl | -
wiki | public | text | a wiki | https://wiki.example
code | public | code | code | -
"""


def rows_of(text, title):
    lines = text.partition(f"## {title}\n\n")[2].partition("\n\n")[0].splitlines()
    names, _, *rows = [[cell.strip() for cell in line.strip("|").split("|")] for line in lines]
    return [dict(zip(names, row, strict=True)) for row in rows]


def number(text):
    return int(text.replace(",", ""))


def test_figures_are_those_by_hand(tmp_path, checkout):
    made = {"web": [], "wiki": [], "code": []}
    for k in range(120):
        url = f"https://site-{k % 30}.example/{k}?q=1"
        metadata = {} if k % 40 == 7 else {"domain": "named.example"} if k % 12 == 0 else {"url": url}
        made["web"].append({"id": f"web-{k}", "text": "w" * (20 + k), "metadata": metadata})
        made["wiki"].append({"id": f"wiki-{k}", "text": "i" * (10 + k % 7), "metadata": {}})
        made["code"].append({"id": f"code-{k}", "text": "c" * 30, "metadata": {"url": "http://code.example/"}})
    for name, rows in made.items():
        (tmp_path / f"{name}.jsonl").write_text("\n".join(map(json.dumps, rows)))
        cl.build(str(tmp_path / f"{name}.jsonl"), str(tmp_path / name), tokenizer="bytes")
    datasets = {name: {"path": str(tmp_path / name)} for name in made}
    config = {"seq_len": 16, "datasets": datasets, "exclude": [{"at": 0, "ids": ["web-5"], "take": "own"}]}
    loader = cl.make_dataloader({**config, "weights": "by_size"}, micro_batch_size=8, num_samples=400)
    loader.log_start(tmp_path, 0)
    seen, known = {}, {row["id"]: row for rows in made.values() for row in rows}
    for _ in loader:
        pass
    # By hand: window k of a dataset holds inputs 16 k to 16 k + 15 of its documents, each its text and a token.
    order = loader.blend.order
    places = {name: [row["id"] for row in made[name] for _ in range(len(row["text"]) + 1)] for name in made}
    for sample in range(400):
        member, _, window = (int(one[0]) for one in order.sample_many([sample]))
        for document in places[order.names[member]][16 * window : 16 * window + 16]:
            seen[document] = seen.get(document, 0) + (document != "web-5")
    seen = {name: count for name, count in seen.items() if count}
    tokens = {name: len(known[name]["text"]) + 1 for name in seen}
    sources = [
        dict(zip(("dataset", "section", "modality", "name", "link"), row, strict=True)) for row in cells(SOURCES)
    ]
    (tmp_path / "sources.jsonl").write_text("\n".join(map(json.dumps, sources)))
    command = [sys.executable, str(checkout / "examples/summary/summary.py"), str(tmp_path), "0:50"]
    done = subprocess.run([*command, str(tmp_path / "sources.jsonl")], capture_output=True, text=True, check=True)

    def total(*beginnings):
        of = [name for name in seen if name.partition("-")[0] in beginnings]
        return [len(of), sum(tokens[name] for name in of), sum(seen[name] for name in of)]

    def figures(rows, key, *more):
        return {row[key]: [*(number(row[name]) for name in ("documents", "tokens", "seen")), *(row[k] for k in more)]
                for row in rows}  # fmt: skip

    found = figures(rows_of(done.stdout, "1.3 Training data size"), "modality", "range")
    assert found == {"text": [*total("web", "wiki"), "less than 1 billion tokens"], "code": [*total("code"), ""]}
    found = figures(rows_of(done.stdout, "2 Data sources"), "name", "section", "percent", "large")
    assert found == {
        "our crawl": [*total("web"), "2.3 crawled", "100.0", ""],
        "a wiki": [*total("wiki"), "2.1 public", "100.0", "yes"],
        "code": [*total("code"), "2.1 public", "100.0", "yes"],
    }
    domains = {}
    for name in [name for name in seen if name.startswith("web")]:
        metadata = known[name]["metadata"]
        domain = metadata.get("domain", metadata.get("url", "https://").split("/")[2])
        domains[domain] = domains.get(domain, 0) + tokens[name]
    (crawled,) = rows_of(done.stdout, "2.3 Data crawled and scraped")
    assert number(crawled["without_domain"]) == domains.pop("", 0) > 0
    assert number(crawled["domains"]) == len(domains)
    best = sorted(domains, key=lambda name: (-domains[name], name))[: -(-len(domains) // 10)]
    top = rows_of(done.stdout, "2.3 The top 10 % of domains, by size")
    assert [(row["domain"], number(row["tokens"])) for row in top] == [(name, domains[name]) for name in best]
    assert done.stdout.count("```sql\n") == 4
    (tmp_path / "sources.jsonl").write_text("\n".join(map(json.dumps, sources[:2])))
    refused = subprocess.run([*command, str(tmp_path / "sources.jsonl")], capture_output=True, text=True, check=False)
    assert "one row for each of code, web, wiki" in refused.stderr
