"""Every public name says what it takes and returns."""

import inspect
import pydoc
import re

import pytest

import conceptloader as cl

ENTRY = re.compile(r"^    \*{0,2}(\w+): ", re.MULTILINE)
NOTHING = (None, "None", inspect.Signature.empty)
PUBLIC = {
    name: value
    for name in dir(cl)
    if callable(value := getattr(cl, name))
    and not (inspect.isclass(value) and issubclass(value, (Exception, dict)))  # made as these are
}


def documented(value):
    """Names that have an entry in a docstring, for a class also in those of its bases."""
    sources = value.__mro__[:-1] if inspect.isclass(value) else [value]
    return {name for source in sources for name in ENTRY.findall(inspect.cleandoc(source.__doc__ or ""))}


@pytest.mark.parametrize("name", PUBLIC)
def test_every_parameter_and_result_has_an_entry(name):
    value = PUBLIC[name]
    signature = inspect.signature(value)
    assert {name for name in signature.parameters if name[0] != "_"} <= documented(value)
    if inspect.isfunction(value) and signature.return_annotation not in NOTHING:
        assert re.search("^(Returns|Yields):", inspect.cleandoc(value.__doc__ or ""), re.MULTILINE)


def test_a_batch_is_explained_and_a_plain_dict():
    batch = cl.TensorBatch({"input_ids": 1}, labels=2)
    assert type(batch) is dict
    assert batch == {"input_ids": 1, "labels": 2}
    assert isinstance(batch, cl.TensorBatch)
    assert not isinstance([], cl.TensorBatch)
    assert "docs/batch-keys.md" in str(cl.TensorBatch.__doc__)
    assert "new empty dictionary" not in pydoc.render_doc(cl.TensorBatch)
