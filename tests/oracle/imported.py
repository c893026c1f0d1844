"""Random datasets that are made of other files: adopted, annotated, built of pages, conversations."""

import numpy as np

from conceptloader.cli import main
from conceptloader.ingest.adopt.adopt import adopt
from conceptloader.ingest.annotate.annotate import annotate
from tests.corpora.records import write_rows
from tests.corpora.token_files import write_datatrove, write_megatron
from tests.oracle.corpora import CONCEPTS, EOS, TOKENIZER, VOCAB, Types, random_spans

IMPORTED = ("adopted", "annotated", "built")
CHATS = ("chats",)
NAMES = [f"concept-{k}" for k in range(CONCEPTS)]
TEMPLATE = (
    "{% for m in messages %}[{{ m.role }}]{{ m.content }}\n{% endfor %}"
    "{% if add_generation_prompt %}[assistant]{% endif %}"
)
WORDS = ["the ", "cat sat ", "größer ", "日本 ", "😀", "on a mat. ", "\n"]


def write_imported(folder, seed):
    rng = np.random.default_rng([seed, 1])
    lengths = [rng.integers(1, 40, int(rng.integers(5, 40))).tolist() for _ in range(int(rng.integers(1, 4)))]
    files = [[[*rng.integers(8, VOCAB, n - 1).tolist(), EOS] for n in file] for file in lengths]
    (folder / "tokens").mkdir()
    for k, file in enumerate(files):
        if seed % 2:
            write_datatrove(folder / "tokens", f"{k}.ds", file, tokenizer=None)
        else:
            write_megatron(folder / "tokens" / str(k), [[document] for document in file])
    adopt([folder / "tokens"], folder / "adopted", tokenizer=TOKENIZER)
    rows = []
    for number, n in enumerate(n for file in lengths for n in file):
        spans = random_spans(rng, n, "concepts", Types("f4", "f4", {}))
        found = [{"start": a, "end": b, "concepts": [NAMES[k] for k in ids]} for a, b, ids in spans if ids]
        rows += [{"document": number, "spans": found}] if found else []
    write_rows(folder / "rows.jsonl", rows)
    annotate(
        folder / "adopted",
        [folder / "rows.jsonl"],
        folder / "annotated",
        track="concepts",
        vocabulary=NAMES,
        span_unit="token",
    )
    write_rows(folder / "pages.jsonl", [page(rng, k) for k in range(30)])
    (folder / "names.txt").write_text("\n".join(NAMES))
    run("pages.jsonl", folder, "built", "--vocabulary", f"concepts={folder / 'names.txt'}")
    write_rows(folder / "chats.jsonl", [{"id": f"c{k}", "messages": talk(rng)} for k in range(20)])
    (folder / "chat.jinja").write_text(TEMPLATE)
    run("chats.jsonl", folder, "chats", "--chat", "--chat-template", str(folder / "chat.jinja"))


def run(inputs, folder, out, *options):
    command = ["build", str(folder / inputs), "--out", str(folder / out), "--tokenizer", "bytes"]
    assert main([*command, "--workers", "1", "--quiet", *options]) == 0


def words(rng, most):
    return [str(word) for word in rng.choice(WORDS, int(rng.integers(1, most)))]


def page(rng, number):
    """Each word is a span or none."""
    found = words(rng, 12)
    ends = np.cumsum([len(word) for word in found]).tolist()
    pieces = zip([0, *ends], ends, rng.integers(0, 2 * CONCEPTS, len(ends)).tolist(), strict=False)
    spans = [{"start": a, "end": b, "concepts": [NAMES[k]]} for a, b, k in pieces if k < CONCEPTS]
    return {"id": f"p{number}", "text": "".join(found), "spans": spans}


def talk(rng):
    turns = int(rng.integers(1, 4))
    return [{"role": role, "content": "".join(words(rng, 6))} for _ in range(turns) for role in ("user", "assistant")]
