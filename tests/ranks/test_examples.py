"""The examples as they are, killed and resumed: they train what is planned, and end as the run that nobody killed."""

import json
import shutil
from pathlib import Path

import pytest
import torch
import yaml

import conceptloader as cl
from conceptloader.cli import main
from conceptloader.order.progress.runlog import FILE_NAME
from conceptloader.testing import random_documents, write_dataset
from conceptloader.trace import open_run
from tests.ranks.launch import judge, launch, seen

pytestmark = [pytest.mark.slow, pytest.mark.timeout(600)]
EXAMPLES = Path(__file__).parents[2] / "examples/pytorch"


def train(folder, number, ranks, script, *arguments, **options):
    """A launch that succeeds, unless it is to be killed."""
    ended = launch(
        "tests.ranks.scripts", [str(EXAMPLES / script), *arguments], folder, ranks=ranks, number=number, **options
    )
    assert (ended.code == 0) == (not {"kill", "env"} & {*options}), ended.output
    return ended


def write(folder, config, name="run.yaml"):
    folder.mkdir(exist_ok=True)
    outputs = {**config.get("outputs", {}), "sample_index": True}
    (folder / name).write_text(yaml.safe_dump({**config, "outputs": outputs}))
    return folder


def test_the_example_killed_while_it_saves(tmp_path):
    """On two ranks in its second checkpoint, on one in the next; the first checkpoint stays."""
    spans = [{"start": 2, "end": 5, "concepts": ["animal"]}]
    records = [json.dumps({"id": f"d{i}", "text": "A cat sat. " * (5 + i % 7), "spans": spans}) for i in range(100)]
    (tmp_path / "in.jsonl").write_text("\n".join(records))
    cl.build(tmp_path / "in.jsonl", tmp_path / "d", tokenizer="bytes", vocabulary={"concepts": ["animal"]})
    config = {"seq_len": 64, "datasets": {"d": {"path": str(tmp_path / "d")}}, "tracks": {"concepts": {}}}
    killed, dies = write(tmp_path / "killed", config), {"env": {"DIES_SAVING": "2"}}
    assert train(killed, 0, 2, "train.py", **dies).codes[0] == -9
    assert sorted(torch.load(killed / "checkpoint.pt")["model"]) == ["0.weight", "1.bias", "1.weight"]
    whole = tmp_path / "whole"
    shutil.copytree(killed, whole)
    train(whole, 1, 1, "train.py")
    assert train(killed, 1, 1, "train.py", **dies).codes == [-9]
    train(killed, 2, 1, "train.py")
    assert [[*seen(killed, number)] for number in (1, 2)] == [[*range(10, 30)], [*range(20, 30)]]
    assert judge(whole, 2, 30, 12) == judge(killed, 3, 30, 12) == (0, 0)
    found, expected = (torch.load(folder / "checkpoint.pt") for folder in (killed, whole))
    assert found.pop("loader") == expected.pop("loader")
    torch.testing.assert_close(found, expected, rtol=0, atol=0)  # weights and moments


def test_fine_tuning(tmp_path):
    """The data of docs/packing.md, a bit more of them. Resumed on another number of ranks, the losses are the same."""
    with open(tmp_path / "chats.jsonl", "w") as file:
        for k in range(300):
            question = {"role": "user", "content": f"What is {k % 17} and {k % 5}?"}
            answer = {"role": "assistant", "content": f"It is {k % 17 + k % 5}." + " Yes." * (k % 9)}
            file.write(json.dumps({"id": str(k), "messages": [question, answer] * (1 + k % 3)}) + "\n")
    (tmp_path / "chat.jinja").write_text("{% for m in messages %}[{{ m.role }}]{{ m.content }}\n{% endfor %}"
                                         "{% if add_generation_prompt %}[assistant]{% endif %}")  # fmt: skip
    chat = ["--chat", "--chat-template", str(tmp_path / "chat.jinja"), "--tokenizer", "bytes"]
    assert main(["build", str(tmp_path / "chats.jsonl"), "--out", str(tmp_path / "chats"), *chat, "--quiet"]) == 0
    config = {"seq_len": 256, "packing": {"bins": 8}, "outputs": {"cu_seqlens": True}}
    config["datasets"] = {"chats": {"path": str(tmp_path / "chats")}}
    whole, broken = (write(tmp_path / name, config, "sft.yaml") for name in ("whole", "broken"))

    def steps(output):
        """Loss and tokens of each step."""
        words = [line.split() for line in output.splitlines() if line.startswith("step ")]
        return {int(step): (float(loss), int(tokens)) for _, step, _, loss, _, tokens in words}

    expected = steps(train(whole, 0, 1, "sft.py").output)
    assert sorted(expected) == list(range(1, 25))
    assert expected[24][0] < expected[1][0] / 2
    found = steps(train(broken, 0, 2, "sft.py", kill="all:9").output) | steps(train(broken, 1, 1, "sft.py").output)
    assert min(seen(broken, 1)) == 9
    assert judge(broken, 2, 24, 8) == (0, 0)
    assert {step: tokens for step, (_, tokens) in found.items()} == {k: tokens for k, (_, tokens) in expected.items()}
    for step, (loss, _) in found.items():
        assert loss == pytest.approx(expected[step][0], rel=2e-3)


def test_weights_by_loss(tmp_path):
    """Killed behind weights that it has set after a checkpoint: it sets the same ones again, and the log knows it."""
    steps, datasets = 40, {}
    for k, (name, size) in enumerate({"easy": 3, "hard": 1000, "middle": 50}.items()):
        documents = random_documents(150, seed=k, prefix=name, vocab_size=size)
        datasets[name] = {"path": write_dataset(tmp_path / name, documents), "weight": 1}
    config = {"seq_len": 32, "datasets": datasets, "loader": {"prefetch_batches": 2}, "mixing": {"odm": {"every": 4}}}
    folders = {name: write(tmp_path / name, config) for name in ("whole", "killed")}
    train(folders["whole"], 0, 2, "online_mixing.py", str(steps))
    train(folders["killed"], 0, 2, "online_mixing.py", str(steps), kill="all:21")
    train(folders["killed"], 1, 2, "online_mixing.py", str(steps))
    assert min(seen(folders["killed"], 1)) == 18
    assert judge(folders["whole"], 1, steps, 12) == judge(folders["killed"], 2, steps, 12) == (0, 0)
    expected, found = (trained(folder) for folder in folders.values())
    assert found == expected
    lines = {name: (folder / FILE_NAME).read_text().count('"kind":"weights"') for name, folder in folders.items()}
    assert lines["killed"] == lines["whole"] + 1
    for folder in folders.values():
        run = open_run(folder / "run.yaml", folder)
        assert len(run.blend.spec.segments) == 1 + steps // 4
        for step in range(steps):
            samples = list(range(*run.steps.range_of(step)))
            assert samples == list(range(12 * step, 12 * step + 12))
            assert run.blend.order.sample_many(samples)[0].tolist() == [expected[sample] for sample in samples]
    early, late = ([expected[sample] for sample in samples] for samples in (range(72), range(408, 480)))
    assert late.count(1) > early.count(1), "the hard dataset is not drawn more often"


def trained(folder):
    """Sample -> dataset, of both ranks; a step that was done again counts as it was done last."""
    found = {}
    for path in folder.glob("trained.*.jsonl"):
        for _, samples, datasets in map(json.loads, path.read_text().splitlines()):
            found.update(zip(samples, datasets, strict=True))
    return found
