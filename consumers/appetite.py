"""How many letters to ask for at once, so that memory stays bounded whatever their size. Pure."""

from __future__ import annotations

SMALLEST_START = 16
"""Letters to begin with, before anything is known of their size."""
LETTER_OVERHEAD_BYTES = 4_000
COPIES = 3
"""A body is in memory about that often: as it came, decoded, and on its way into the database."""
FORGETTING = 0.02
"""How fast large bodies are forgotten: after some hundred small ones."""


class Appetite:
    """Follows the sizes of the bodies and says how many letters may be in hand."""

    def __init__(self, *, most: int, budget_bytes: int) -> None:
        self._most, self._budget_bytes = most, budget_bytes
        self._typical_bytes: float | None = None
        self._wary = 0
        self.current = min(most, SMALLEST_START)

    def saw(self, body_bytes: int) -> None:
        """A body of that size is arriving. Large ones count at once, small ones by and by."""
        size = COPIES * body_bytes + LETTER_OVERHEAD_BYTES
        typical = self._typical_bytes or size
        self._typical_bytes = max(size, typical + FORGETTING * (size - typical))
        self._wary = max(0, self._wary - 1)

    @property
    def wanted(self) -> int:
        """How many letters fit into the budget."""
        if self._typical_bytes is None:
            return self.current
        most = min(self._most, SMALLEST_START) if self._wary else self._most
        return max(1, min(most, int(self._budget_bytes / self._typical_bytes)))

    def change(self) -> None:
        """Ask for as many as are wanted from now on, where that is not nearly what is asked for."""
        wanted = self.wanted
        if wanted >= 2 * self.current or wanted <= self.current / 2 or wanted == self._most:
            self.current = wanted

    def draws_back(self, letters: int, held_bytes: int) -> bool:
        """Whether more is in hand than may be, because sizes changed all at once; if so, fewer are asked for.

        All that were asked for come again, small ones before large ones: until they have come, it stays few.
        """
        if letters <= 1 or held_bytes <= self._budget_bytes:
            return False
        self._wary, self.current = max(self._wary, self.current), 1
        return True
