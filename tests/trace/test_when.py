"""`when` and `trace` against a walk through every sample of the run, token by token."""

from collections import Counter

import pytest

from conceptloader.errors import ConfigError
from conceptloader.order.partition import Place
from conceptloader.trace import Run, trace_sample, trace_step, when_concept, when_document
from tests.raises import raises
from tests.trace.conftest import NUM_SAMPLES, SEQ_LEN


def holders(run: Run, index: int) -> list[int]:
    """The document of every token of a dataset."""
    dataset = run.member(index).dataset
    return [d for d in range(dataset.num_documents) for _ in range(*dataset.document_range(d))]


def concepts(run: Run, index: int, track: str) -> list[set[int]]:
    """The concepts of every token of a dataset."""
    dataset = run.member(index).dataset
    of_token: list[set[int]] = [set() for _ in range(dataset.num_tokens)]
    spans = dataset.spans(track, 0, dataset.num_tokens)
    for start, end, ids in zip(spans.start.tolist(), spans.end.tolist(), spans.decode(), strict=True):
        for token in range(start, end):
            of_token[token] = set(ids.tolist())
    return of_token


def places(run: Run, last_step: int) -> dict[int, list[Place]]:
    """sample -> where it is trained, by asking every rank of every step."""
    found: dict[int, list[Place]] = {}
    for step in range(last_step):
        plan = run.steps.segment(step).plan
        for dp_rank in range(plan.partition.dp_size):
            for micro_batch, row in enumerate(plan.micro_batches(step, dp_rank)):
                for slot, sample in enumerate(row.tolist()):
                    found.setdefault(sample, []).append(Place(step, micro_batch, dp_rank, slot))
    return found


def walk(run: Run) -> list[tuple[int, int, int, int, int]]:
    """(sample, dataset, epoch, window, first token)."""
    result = []
    for sample in range(NUM_SAMPLES):
        index, epoch, window = run.blend.order.sample(sample)
        result.append((sample, index, epoch, window, run.member(index).view.start + window * SEQ_LEN))
    return result


def test_every_document_is_found_in_every_sample_that_holds_it(run: Run) -> None:
    expected: dict[str, list[tuple[object, ...]]] = {}
    where = places(run, 60)
    for index in range(3):
        member = run.member(index)
        names = [member.dataset.document_id(d) for d in range(member.dataset.num_documents)]
        holder = holders(run, index)
        for name in names:
            expected.setdefault(str(name), [])
        for sample, dataset, epoch, window, first in walk(run):
            if dataset != index:
                continue
            inputs, labels = holder[first : first + SEQ_LEN], holder[first + 1 : first + SEQ_LEN + 1]
            for document in sorted({*inputs, *labels}):
                seen = [
                    (row.index(document), row.index(document) + row.count(document)) if document in row else None
                    for row in (inputs, labels)
                ]
                expected[str(names[document])].append((sample, epoch, window, *seen, where[sample]))
    assert any(seen[3] is None for rows in expected.values() for seen in rows), "no document is seen as a label only"
    assert any(seen[4] is None for rows in expected.values() for seen in rows), "no document is seen as an input only"
    for name, rows in expected.items():
        found = [
            (s.sample, s.epoch, s.window, s.inputs, s.labels, s.places) for s in when_document(run, name, NUM_SAMPLES)
        ]
        assert found == rows, name


@pytest.mark.parametrize("track", ["concepts", "quality"])
def test_every_concept_is_found_in_every_sample_that_holds_it(run: Run, track: str) -> None:
    expected: dict[int, list[tuple[int, ...]]] = {concept: [] for concept in range(3)}
    for index in range(3):
        of_token = concepts(run, index, track)
        for sample, dataset, epoch, window, first in walk(run):
            if dataset == index:
                for concept, rows in expected.items():
                    has = [concept in ids for ids in of_token[first : first + SEQ_LEN + 1]]
                    if any(has):
                        rows.append((sample, index, epoch, window, sum(has[:-1]), sum(has[1:])))
    for concept, rows in expected.items():
        for asked in (concept, f"concept-{concept}"):
            found = when_concept(run, track, asked, NUM_SAMPLES)
            assert sorted(
                (s.sample, run.find(s.dataset)[0], s.epoch, s.window, s.inputs, s.labels) for s in found
            ) == sorted(rows)


def test_a_sample_shows_its_documents_and_spans(run: Run) -> None:
    all_holders = [holders(run, index) for index in range(3)]
    all_concepts = [concepts(run, index, "concepts") for index in range(3)]
    for sample, index, epoch, window, first in walk(run)[::7]:
        found = trace_sample(run, sample)
        dataset = run.member(index).dataset
        assert (found.dataset, found.epoch, found.window) == (run.name(index), epoch, window)
        assert found.tokens == (first, first + SEQ_LEN + 1)
        holder = all_holders[index]
        for kind, shift in (("inputs", 0), ("labels", 1)):
            shown = Counter()
            for part in found.documents:
                assert part.id == dataset.document_id(part.document)
                for position in range(*(getattr(part, kind) or (0, 0))):
                    assert holder[first + shift + position] == part.document
                    shown[position] += 1
            assert shown == Counter(range(SEQ_LEN))
        of_token: list[set[int]] = [set() for _ in range(SEQ_LEN)]
        for span in found.spans["concepts"]:
            assert span.names == [f"concept-{concept}" for concept in span.record]
            for position in range(span.start, span.end):
                of_token[position] = set(span.record)
        assert of_token == all_concepts[index][first : first + SEQ_LEN]


def test_a_step_shows_its_samples_in_order(run: Run) -> None:
    assert [one.sample for one in trace_step(run, 8)] == list(range(64, 72))
    assert [one.sample for one in trace_step(run, 13)] == list(range(108, 120))
    assert all(place.step == 13 for one in trace_step(run, 13) for place in one.places)


def test_without_a_history_there_are_samples_but_no_steps(run: Run) -> None:
    lonely = Run(blend=run.blend)
    seen = when_document(lonely, "web-9")
    assert seen
    assert all(one.places == [] for one in seen)
    with raises(ConfigError, found="steps are not known"):
        trace_step(lonely, 0)


def test_the_first_epoch_is_the_answer_without_a_length(run: Run) -> None:
    assert {one.epoch for one in when_document(run, "books-3")} == {0}
    assert {one.epoch for one in when_document(run, "books-3", NUM_SAMPLES)} > {0}


def test_a_dataset_of_a_later_phase_is_not_seen_before(run: Run) -> None:
    assert when_document(run, "code-3", 113) == []
    assert list(when_concept(run, "concepts", 1, 113, dataset="code")) == []
    assert when_document(run, "code-3", NUM_SAMPLES)
    assert list(when_concept(run, "concepts", 1, NUM_SAMPLES, dataset="code"))


def test_what_does_not_exist(run: Run) -> None:
    with raises(ConfigError, found="no 'nobody' in books, code, web"):
        when_document(run, "nobody")
    with raises(ConfigError, fix="say of which dataset"):
        when_document(run, 3)
    with raises(ConfigError, found="'music'"):
        when_document(run, 3, dataset="music")
    with raises(ConfigError, found="'colour'"):
        when_concept(run, "colour", 1)
    with raises(ConfigError, found="'red'", expected="one of 6 names"):
        when_concept(run, "concepts", "red")


def test_a_document_by_number_equals_the_document_by_id(run: Run) -> None:
    number = run.member(0).dataset.find_document("books-7")[0]
    assert when_document(run, number, NUM_SAMPLES, dataset="books") == when_document(run, "books-7", NUM_SAMPLES)
