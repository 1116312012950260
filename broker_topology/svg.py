"""A graph as SVG: columns from left to right, in the order in which messages go."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from html import escape

from broker_topology.graph import COLOURS, Edge, Graph, Node, Road

BOX_WIDTH, BOX_HEIGHT = 190, 46
COLUMN_GAP, ROW_GAP, MARGIN, LEGEND_HEIGHT = 130, 22, 24, 40
_DASHES = {Road.BINDING: "", Road.DEAD_LETTER: "7 4", Road.UNROUTABLE: "2 4"}
_LONGEST_NAME = 24


@dataclass(frozen=True, slots=True, kw_only=True)
class _Layout:
    places: dict[Node, tuple[int, int]]
    """Upper left corner of each box."""
    width: int
    height: int

    @property
    def bottom(self) -> int:
        """Where roads run that go under the boxes."""
        return self.height - LEGEND_HEIGHT - MARGIN // 2


def svg(graph: Graph, *, title: str) -> str:
    """The graph as an SVG document of its own."""
    layout = _lay_out(graph)
    return "\n".join(_lines(graph, layout, title)) + "\n"


def _lines(graph: Graph, layout: _Layout, title: str) -> Iterator[str]:
    yield (
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{layout.width}" height="{layout.height}" '
        f'viewBox="0 0 {layout.width} {layout.height}" font-family="sans-serif" font-size="12" role="img">'
    )
    yield f"<title>{escape(title)}</title>"
    yield "<defs>"
    for road, colour in COLOURS.items():
        yield (
            f'<marker id="{_id(road)}" viewBox="0 0 8 8" refX="8" refY="4" markerWidth="8" markerHeight="8" '
            f'orient="auto-start-reverse"><path d="M0 0L8 4L0 8z" fill="{colour}"/></marker>'
        )
    yield "</defs>"
    yield f'<rect width="{layout.width}" height="{layout.height}" fill="#ffffff"/>'
    for edge in graph.edges:
        yield from _edge(edge, layout)
    for node in graph.nodes:
        yield from _box(node, *layout.places[node])
    yield from _legend(layout)
    yield "</svg>"


def _box(node: Node, x: int, y: int) -> Iterator[str]:
    radius = BOX_HEIGHT // 2 if node.kind == "exchange" else 4
    fill = "#eef3fb" if node.kind == "exchange" else "#f3f6ee"
    middle = x + BOX_WIDTH // 2
    yield f"<g><title>{escape(f'{node.kind} {node.name} ({node.detail})')}</title>"
    yield (
        f'<rect x="{x}" y="{y}" width="{BOX_WIDTH}" height="{BOX_HEIGHT}" rx="{radius}" fill="{fill}" '
        f'stroke="#44546a"/>'
    )
    name, kind = escape(_short(node.name)), f"{escape(node.detail)} {node.kind}"
    yield f'<text x="{middle}" y="{y + 20}" text-anchor="middle" font-weight="bold">{name}</text>'
    yield f'<text x="{middle}" y="{y + 36}" text-anchor="middle" fill="#5a6472">{kind}</text>'
    yield "</g>"


def _edge(edge: Edge, layout: _Layout) -> Iterator[str]:
    (x1, y1), (x2, y2) = layout.places[edge.source], layout.places[edge.target]
    colour, dash = COLOURS[edge.road], _DASHES[edge.road]
    near = x1 < x2 <= x1 + BOX_WIDTH + COLUMN_GAP
    if near:
        start, end = (x1 + BOX_WIDTH, y1 + BOX_HEIGHT // 2), (x2, y2 + BOX_HEIGHT // 2)
        bend = max((end[0] - start[0]) // 2, 40)
        path = f"M{start[0]} {start[1]}C{start[0] + bend} {start[1]} {end[0] - bend} {end[1]} {end[0]} {end[1]}"
    else:
        # Past other columns, or back: out below the box, under everything, and in from below.
        start, end = (x1 + BOX_WIDTH // 2, y1 + BOX_HEIGHT), (x2 + BOX_WIDTH // 2, y2 + BOX_HEIGHT)
        low = (8 * layout.bottom - start[1] - end[1]) // 6
        path = f"M{start[0]} {start[1]}C{start[0]} {low} {end[0]} {low} {end[0]} {end[1]}"
    dashes = f' stroke-dasharray="{dash}"' if dash else ""
    words = f"{edge.source.name} to {edge.target.name}: {edge.road} {edge.label}".strip()
    yield f"<g><title>{escape(words)}</title>"
    stroke = f'fill="none" stroke="{colour}" stroke-width="1.5"{dashes}'
    yield f'<path d="{path}" {stroke} marker-end="url(#{_id(edge.road)})"/>'
    if edge.label and near:
        x, y = (start[0] + 2 * end[0]) // 3 - 10, (start[1] + 2 * end[1]) // 3 - 5
        label = escape(_short(edge.label))
        yield f'<text x="{x}" y="{y}" text-anchor="middle" font-size="10" fill="{colour}">{label}</text>'
    yield "</g>"


def _legend(layout: _Layout) -> Iterator[str]:
    y = layout.height - LEGEND_HEIGHT // 2
    for index, road in enumerate(Road):
        x, dash = MARGIN + index * 150, _DASHES[road]
        dashes = f' stroke-dasharray="{dash}"' if dash else ""
        yield f'<path d="M{x} {y}H{x + 36}" stroke="{COLOURS[road]}" stroke-width="1.5"{dashes}/>'
        yield f'<text x="{x + 44}" y="{y + 4}" fill="{COLOURS[road]}">{road}</text>'


def _lay_out(graph: Graph) -> _Layout:
    columns: list[list[Node]] = []
    depth = _depths(graph)
    for node in graph.nodes:
        while len(columns) <= depth[node]:
            columns.append([])
        columns[depth[node]].append(node)
    columns = [_ordered(column, columns[index - 1] if index else [], graph) for index, column in enumerate(columns)]
    tallest = max((len(column) for column in columns), default=0)
    places: dict[Node, tuple[int, int]] = {}
    for x_index, column in enumerate(columns):
        offset = (tallest - len(column)) * (BOX_HEIGHT + ROW_GAP) // 2
        for y_index, node in enumerate(column):
            x = MARGIN + x_index * (BOX_WIDTH + COLUMN_GAP)
            places[node] = (x, MARGIN + offset + y_index * (BOX_HEIGHT + ROW_GAP))
    width = 2 * MARGIN + len(columns) * BOX_WIDTH + max(len(columns) - 1, 0) * COLUMN_GAP
    height = 2 * MARGIN + tallest * (BOX_HEIGHT + ROW_GAP) + LEGEND_HEIGHT
    return _Layout(places=places, width=max(width, 500), height=height)


def _depths(graph: Graph) -> dict[Node, int]:
    """The column of each node: the longest way to it, with the roads left out that lead back."""
    outgoing: dict[Node, list[Node]] = {node: [] for node in graph.nodes}
    for edge in graph.edges:
        outgoing[edge.source].append(edge.target)
    order, forward = _topological(graph.nodes, outgoing)
    depth = dict.fromkeys(graph.nodes, 0)
    for node in order:
        for target in forward[node]:
            depth[target] = max(depth[target], depth[node] + 1)
    return depth


def _topological(
    nodes: tuple[Node, ...], outgoing: dict[Node, list[Node]]
) -> tuple[list[Node], dict[Node, list[Node]]]:
    """Nodes before those they lead to, and the edges of that order; without recursion, for long chains."""
    order: list[Node] = []
    forward: dict[Node, list[Node]] = {node: [] for node in nodes}
    state: dict[Node, str] = {}
    for root in nodes:
        stack = [(root, iter(outgoing[root]))] if root not in state else []
        state.setdefault(root, "open")
        while stack:
            node, targets = stack[-1]
            target = next(targets, None)
            if target is None:
                state[node] = "done"
                order.append(node)
                stack.pop()
            elif state.get(target) != "open":
                forward[node].append(target)
                if target not in state:
                    state[target] = "open"
                    stack.append((target, iter(outgoing[target])))
    return order[::-1], forward


def _ordered(column: list[Node], before: list[Node], graph: Graph) -> list[Node]:
    """A column in the order of what leads into it, so that fewer roads cross; what is reached from below, last."""
    rows = {node: index for index, node in enumerate(before)}

    def rank(node: Node) -> tuple[bool, float]:
        sources = [edge.source for edge in graph.edges if edge.target == node]
        above = [rows[source] for source in sources if source in rows]
        return bool(rows) and len(above) < len(sources), sum(above) / len(above) if above else len(rows)

    return sorted(column, key=rank)


def _short(text: str) -> str:
    return text if len(text) <= _LONGEST_NAME else f"{text[: _LONGEST_NAME - 1]}…"


def _id(road: Road) -> str:
    return f"arrow-{road.name.lower().replace('_', '-')}"
