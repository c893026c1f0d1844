"""What tests.house.size counts."""

from tests.house.size import count, part


def test_what_is_a_code_line_and_a_token() -> None:
    assert count('"""A module\nof two lines."""\n\nx = 1  # one\n# a comment\ny = """a\nb"""\n') == (3, 6)


def test_what_is_the_core() -> None:
    paths = {"core": ("conceptloader/batch/a.py", "conceptloader/launch.py", "conceptloader/format/read/b/c.py")}
    paths["add-ons"] = ("conceptloader/metrics/a.py", "conceptloader/format/index.py", "integrations/run/data.py")
    paths["tests"] = ("tests/house/size.py",)
    assert {name: {part(path) for path in found} for name, found in paths.items()} == {name: {name} for name in paths}
