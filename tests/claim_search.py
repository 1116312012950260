"""Walks every order of events around one claim, and tells the shortest story in which a promise is broken."""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field

from tests.claim_world import IDLE, Budget, Faults, World, events


@dataclass(frozen=True, slots=True, kw_only=True)
class Verdict:
    """What a search found."""

    states: int
    most_effects: int
    broken: str = ""
    story: tuple[str, ...] = field(default=())


def search(faults: Faults, *, limit: int = 2_000_000) -> Verdict:
    """Walk every story within the faults' budget."""
    start = World(
        queue=tuple(sorted(faults.messages)),
        workers=(IDLE, IDLE),
        record=None,
        budget=Budget(*(getattr(faults, name) for name in Budget._fields)),
    )
    came_from: dict[World, tuple[World, str] | None] = {start: None}
    backwards: dict[World, list[World]] = {}
    ends: list[World] = []
    todo = deque([start])
    most_effects = 0
    while todo:
        world = todo.popleft()
        most_effects = max(most_effects, world.effects)
        if world.broken:
            return Verdict(
                states=len(came_from),
                most_effects=most_effects,
                broken=world.broken,
                story=_story(came_from, world),
            )
        if not world.queue and world.workers == (IDLE, IDLE):
            ends.append(world)
        for event, following in events(world, faults):
            backwards.setdefault(following, []).append(world)
            if following not in came_from:
                came_from[following] = (world, event)
                todo.append(following)
                assert len(came_from) < limit, "the search grew out of hand"
    stuck = _stuck(came_from, backwards, ends)
    return Verdict(
        states=len(came_from),
        most_effects=most_effects,
        broken="stuck" if stuck else "",
        story=_story(came_from, stuck) if stuck else (),
    )


Origins = dict[World, tuple[World, str] | None]


def _story(came_from: Origins, world: World) -> tuple[str, ...]:
    told: list[str] = []
    while (step := came_from[world]) is not None:
        world, event = step
        told.append(event)
    return tuple(reversed(told))


def _stuck(came_from: Origins, backwards: dict[World, list[World]], ends: list[World]) -> World | None:
    """A state from which no end can be reached."""
    reaches_end = set(ends)
    todo = list(ends)
    while todo:
        for before in backwards.get(todo.pop(), ()):
            if before not in reaches_end:
                reaches_end.add(before)
                todo.append(before)
    return next((world for world in came_from if world not in reaches_end), None)
