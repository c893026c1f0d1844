"""Tracks with levels: spans that overlap or nest are stored as several tracks, which are one track to users."""

from collections.abc import Mapping
from itertools import count, takewhile

from conceptloader.format.spec.manifest import Track


def level_name(track: str, level: int) -> str:
    """The track that holds a level of a track, from 1; the first level keeps the name."""
    return track if level == 1 else f"{track}_level{level}"


def families(tracks: Mapping[str, Track]) -> dict[str, tuple[str, ...]]:
    """Each track -> itself and its further levels, outermost first, which are no tracks of their own.

    A level has the codec, the parameters and the concepts of its track.
    """
    found = {name: _levels(name, tracks) for name in tracks}
    further = {name for names in found.values() for name in names[1:]}
    return {name: names for name, names in found.items() if name not in further}


def _levels(track: str, tracks: Mapping[str, Track]) -> tuple[str, ...]:
    names = (level_name(track, level) for level in count(2))
    return track, *takewhile(lambda name: name in tracks and _kind(tracks[name]) == _kind(tracks[track]), names)


def _kind(track: Track) -> tuple[object, ...]:
    names = track.vocabulary
    return track.codec, dict(track.parameters), names and (names.count, names.checksum)
