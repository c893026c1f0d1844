"""docs/losses.md in a trainer: its corpus to train on, and its questions of the run log that the trainer wrote."""

import re

from conceptloader.config import Config
from tests.docs.test_code_blocks import ROOT, Part, blocks, run

FIRST, BATCH, STEPS = 12_280, 16, 24
PAGE = ROOT / "docs/losses.md"
SETUP, _, REST = PAGE.read_text("utf-8").partition("## Samples that no rank trained")[0].partition("torch.manual_seed")
ASKED = REST.partition("```\n")[2]
COMMANDS = re.sub(
    r"^(?!\$ conceptloader).*\n|^\$ ", "", "".join(re.findall(r"```console\n(.*?)```", ASKED, re.S)), flags=re.M
)


def write_corpus(folder, monkeypatch):
    """Makes `folder` the current one. Returns the page's configuration, in whose step 0 are the samples of the page's
    step 12,280. The run log has to be in `checkpoints`."""
    folder.mkdir()
    monkeypatch.chdir(folder)
    config = run(Part(PAGE, "", blocks(f"{SETUP}```\n")))["config"]
    config["datasets"]["pages"]["path"] = str(folder / "data/pages")
    return {"seed": Config.seed, **config, "skip": [{"at": 0, "count": FIRST * BATCH}]}


def find_documents(capsys):
    """The page's commands and Python, with steps that are 12,280 lower, end with the text that the page ends with."""
    capsys.readouterr()
    python = ASKED[ASKED.index("```python") :]
    asked = re.sub(r"12_?[23]\d\d", lambda step: str(int(step[0]) - FIRST), f"```bash\n{COMMANDS}```\n{python}")
    run(Part(PAGE, "", blocks(asked)))
    lines = capsys.readouterr().out.splitlines()
    means = dict(line.split() for line in lines if re.fullmatch(r" *\d+ +[\d.]+", line))
    assert max(means, key=lambda step: float(means[step])) == "20"
    found = [line.split()[0] for line in lines if line.startswith("page-")]
    assert sorted(found) == re.findall(r"--document (\S+)", ASKED)
    assert set(re.findall(r"^text\n(.*)$", ASKED, re.M)) <= set(lines)
