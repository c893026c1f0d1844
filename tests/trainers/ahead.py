"""Something between a loader and a trainer that reads ahead, as device prefetchers do."""

from collections import deque


class Ahead:
    """Reads two batches ahead."""

    def __init__(self, batches):
        self.batches = batches

    def __iter__(self):
        waiting = deque()
        for batch in self.batches:
            waiting.append(batch)
            if len(waiting) > 2:
                yield waiting.popleft()
        yield from waiting
