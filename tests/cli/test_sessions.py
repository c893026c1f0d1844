"""Sessions of a terminal, in sessions/*.txt: commands, what they say, and what is in the datasets that they write.

    == a name, and [kinds] of the file that `in.*` stands for
    < in.jsonl x3          a file of the lines below, here three times; #K in them counts;
                           `raw`: with escapes of Python; `features`: the first line is what `datasets` knows;
                           of .npy the type, and values as JSON
    > build in.jsonl ...   conceptloader ends with 0; `>1` or `>2`: with that. Each indented line is in what it says
    $ rm in.jsonl          a line of a shell, which ends with 0
    = out                  a dataset holds exactly the indented lines: documents, their fields and spans

Of rows in a table `line 2` is `row 1`. Files of tokenizers are there: words.json, and the folder marks.
"""

import contextlib
import io
import json
import re
import shlex
import subprocess
from functools import cache
from itertools import groupby
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from tokenizers import AddedToken, Tokenizer

import conceptloader as cl
from conceptloader.cli import main
from tests.corpora.tokenizers import byte_level

FOLDER = Path(__file__).with_name("sessions")
CHATML = (
    "{% for m in messages %}<|im_start|>{{ m.role }}\n{{ m.content }}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)


def sessions():
    found = []
    for file in sorted(FOLDER.glob("*.txt")):
        for part in re.split(r"^== ", file.read_text(), flags=re.M)[1:]:
            title, _, script = part.partition("\n")
            name, _, kinds = title.partition(" [")
            found += [
                pytest.param(script, kind, id=f"{file.stem}: {name}{kind and f', {kind}'}")
                for kind in kinds.strip("]").split() or [""]
            ]
    return found


@cache
def tokenizers():
    marks = byte_level()
    marks.add_special_tokens([AddedToken(name, special=True) for name in ("<s>", "<|im_start|>", "<|im_end|>")])
    config = {"tokenizer_class": "PreTrainedTokenizerFast", "chat_template": CHATML, "eos_token": "<|im_end|>"}
    return {
        "words.json": byte_level().to_str(), "marks/tokenizer.json": marks.to_str(),
        "marks/tokenizer_config.json": json.dumps(config), "chatml.jinja": CHATML,
    }  # fmt: skip


def write(path, lines, how):
    text = "".join(f"{line}\n" for line in lines)
    if how and how[0][0] == "x":
        text = "".join(text.replace("#K", str(k)) for k in range(int(how[0][1:])))
    data = text.encode().decode("unicode_escape").encode("latin-1") if how == ["raw"] else text.encode()
    path.parent.mkdir(parents=True, exist_ok=True)
    if path.suffix == ".npy":
        np.save(path, np.array(json.loads(text), *how))
    elif path.suffix == ".parquet" and how != ["raw"]:
        rows = [json.loads(line) for line in text.splitlines()]
        features = {"info": {"features": rows.pop(0)}} if how == ["features"] else {}
        table = pa.Table.from_pylist(rows).replace_schema_metadata({"huggingface": json.dumps(features)})
        pq.write_table(table, path)
    else:
        path.write_bytes(data)


def shown(path):
    """A document a line: its id, its tokens, its fields and its spans by track."""

    def pieces(ids):
        if ds.tokenizer is not None and ds.tokenizer.name == "bytes":
            runs = groupby(ids, lambda one: one < 256)
            return "".join(bytes(run).decode(errors="replace") if text else f"<{next(run)}>" for text, run in runs)
        file = Path(path, "tokenizer.json")
        one = Tokenizer.from_file(str(file)) if file.exists() else None
        return "|".join(one.decode([k], skip_special_tokens=False) for k in ids) if one else " ".join(map(str, ids))

    def record(track, spans, k):
        value = spans.decode()[k]
        if ds.tracks[track].codec != "concepts":
            return json.dumps(value.tolist() if isinstance(value, np.ndarray) else value)
        names = ds.vocabulary(track)
        found = [names[one] if names else str(one) for one in value.tolist()]
        if "scores" in ds.tracks[track].parameters:
            scores = spans.scores[spans.offsets[k] : spans.offsets[k + 1]].tolist()
            found = [f"{name}*{score:.4g}" for name, score in zip(found, scores, strict=True)]
        return "+".join(found) or "-"

    lines = []
    with cl.open_dataset(path) as ds:
        for number in range(ds.num_documents):
            start, stop = ds.document_range(number)
            read = ds.read(start, stop, sorted(ds.tracks))
            line = f"{ds.document_id(number) or '-'}: {pieces(read['tokens'].tolist())}"
            for name in sorted(ds.field_names):
                line += f" | {name} " + " ".join(
                    f"{one:.9g}" if isinstance(one, float) else str(one) for one in read[name].tolist()
                )
            for track in sorted(ds.tracks):
                spans = read[track]
                places = [*zip(spans.start.tolist(), spans.end.tolist(), strict=True)]
                if places:
                    line += f" | {track}" + "".join(
                        f" {a}:{b} {record(track, spans, k)}" for k, (a, b) in enumerate(places)
                    )
            lines.append(line.replace("\n", "\\n"))
    return lines


def run(words):
    said = io.StringIO()
    with contextlib.redirect_stdout(said), contextlib.redirect_stderr(said):
        try:
            code = main(words + (["--workers", "1"] if words[:1] == ["build"] and "--workers" not in words else []))
        except SystemExit as end:
            code = int(end.code or 0)
    return code, said.getvalue()


@pytest.mark.parametrize(("script", "kind"), sessions())
def test_session(script, kind, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    for name, text in tokenizers().items():
        write(tmp_path / name, [text], [])
    if kind:
        script = script.replace("in.*", f"in.{kind}")
    for step in re.split(r"\n(?=[<>$=])", script.rstrip()):
        head, *below = step.strip("\n").split("\n")
        if head.startswith("<"):
            name, *how = head[1:].split()
            write(tmp_path / name, below, how)
            continue
        below = [line[2:] for line in below if line.strip()]
        if kind == "parquet":
            below = [re.sub(r"line (\d+)", lambda found: f"row {int(found[1]) - 1}", line) for line in below]
        if head.startswith("="):
            assert shown(head[1:].strip()) == below
            continue
        code, command = re.fullmatch(r"[>$](\d?) ?(.*)", head).groups()
        if head.startswith("$"):
            done = subprocess.run(command, shell=True, capture_output=True, text=True)
            found, said = done.returncode, done.stdout + done.stderr
        else:
            found, said = run(shlex.split(command))
        assert found == int(code or 0), f"{head}\n{said}"
        assert "Traceback" not in said
        assert [line for line in below if line not in said] == [], f"{head}\n{said}"
