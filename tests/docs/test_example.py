"""The quickstart shows examples/pytorch/train.py as it is."""


def test_the_example_in_the_quickstart_is_the_file(checkout):
    docstring, code = (checkout / "examples/pytorch/train.py").read_text("utf-8").split('"""\n', 1)
    assert docstring.startswith('"""torchrun')
    assert f"```python\n{code.lstrip()}```\n" in (checkout / "docs/quickstart.md").read_text("utf-8")
