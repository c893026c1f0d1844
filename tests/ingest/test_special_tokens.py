"""Text that spells a special token: as text, as that token, or refused; counted by name."""

import pytest

from conceptloader.ingest.records.batch import BadRow
from conceptloader.ingest.records.special_tokens import RULES, SpecialTokens
from conceptloader.ingest.records.tokenizer import FileTokenizer
from tests.corpora.tokenizers import END, FAMILIES, definition

PLAIN = ["the red cat", "größer 😀", "", "a < b | c"]
SPELLED = f"a {END}b"


@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize("rule", RULES)
def test_text_without_such_names_is_cut_as_ever(family, rule):
    tokenizer = FileTokenizer(definition(family), family, END)
    texts = [text for text in PLAIN if family != "unigram without bytes" or text.isascii()]
    wanted, places = tokenizer.encode(texts, [True] * len(texts))
    using = SpecialTokens(tokenizer, rule)
    found, found_places = using.encode(texts, [True] * len(texts))
    assert found.values.tolist() == wanted.values.tolist()
    assert found.offsets.tolist() == wanted.offsets.tolist()
    assert found_places.tolist() == places.tolist()
    assert not using.spelled


@pytest.mark.parametrize("family", FAMILIES)
def test_names_by_each_rule(family):
    made = FAMILIES[family]()
    made.add_special_tokens([END])
    tokenizer = FileTokenizer(made.to_str().encode(), family, END)
    texts = ["red", SPELLED, "the"]
    control = SpecialTokens(tokenizer, "control")
    tokens, places = control.encode(texts, [True] * 3)
    wanted, wanted_places = tokenizer.encode(texts, [True] * 3)
    assert (tokens.values.tolist(), places.tolist()) == (wanted.values.tolist(), wanted_places.tolist())
    assert control.spelled == {END: 1}
    with pytest.raises(BadRow, match=r"special token '<\|endoftext\|>' in text") as caught:
        SpecialTokens(tokenizer, "error").encode(texts, [True] * 3)
    assert caught.value.row == 1
    plain = SpecialTokens(tokenizer, "text")
    if "unigram" in family:  # it has the name as a piece of text, too
        with pytest.raises(BadRow, match="cannot cut as text"):
            plain.encode(texts, [True] * 3)
        return
    tokens, places = plain.encode(texts, [True] * 3)
    assert tokenizer.eos_id not in tokens.values.tolist()
    assert plain.spelled == {END: 1}
    for row, text in enumerate(texts):
        part = slice(*tokens.offsets[row : row + 2])
        assert tokens.values[part].tolist() == tokenizer.encode([text], [False], plain=True)[0].values.tolist()
        assert places[part].tolist() == tokenizer.encode([text], [True], plain=True)[1].tolist()
