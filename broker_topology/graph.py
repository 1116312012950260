"""The picture of a topology: what leads where, with the roads of dead and of unroutable messages drawn apart."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from enum import StrEnum

from broker_topology.effective import effective_alternate, effective_queue
from broker_topology.topology import Topology
from broker_topology.versions import NEWEST


class Road(StrEnum):
    """Why a message goes from one object to another."""

    BINDING = "binding"
    DEAD_LETTER = "dead letters"
    UNROUTABLE = "unroutable"


@dataclass(frozen=True, slots=True, kw_only=True)
class Node:
    """An exchange or a queue."""

    kind: str
    """``exchange`` or ``queue``."""
    name: str
    detail: str
    """Its type; for what is not declared, that."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Edge:
    """A road between two of them."""

    source: Node
    target: Node
    road: Road
    label: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Graph:
    """Everything in a picture, in the order of the file."""

    nodes: tuple[Node, ...]
    edges: tuple[Edge, ...]


def make_graph(topology: Topology) -> Graph:
    """The graph of one virtual host; settings by policy count like arguments."""
    nodes: dict[tuple[str, str], Node] = {}

    def node(kind: str, name: str, detail: str = "not declared") -> Node:
        return nodes.setdefault((kind, name), Node(kind=kind, name=name, detail=detail))

    for exchange in topology.exchanges:
        node("exchange", exchange.name, exchange.type)
    for queue in topology.queues:
        node("queue", queue.name, effective_queue(topology, queue, NEWEST).type)
    edges: dict[tuple[Node, Node, Road], list[str]] = {}
    for binding in topology.bindings:
        source = node("exchange", binding.source, "built in" if binding.source.startswith("amq.") else "not declared")
        target = node(binding.destination_type, binding.destination)
        edges.setdefault((source, target, Road.BINDING), []).append(binding.routing_key)
    for queue in topology.queues:
        effective = effective_queue(topology, queue, NEWEST)
        name, key = effective.dead_letter_exchange, effective.dead_letter_routing_key
        if name is not None:
            # By the default exchange a dead letter goes to the queue that its routing key names.
            target = node("exchange", name) if name else node("queue", key or queue.name)
            edges.setdefault((node("queue", queue.name), target, Road.DEAD_LETTER), []).append(key or "")
    for exchange in topology.exchanges:
        alternate = effective_alternate(topology, exchange.name)
        if alternate is not None:
            ends = (node("exchange", exchange.name), node("exchange", alternate), Road.UNROUTABLE)
            edges.setdefault(ends, []).append("")
    return Graph(
        nodes=tuple(nodes.values()),
        edges=tuple(
            Edge(source=source, target=target, road=road, label=_label(keys))
            for (source, target, road), keys in edges.items()
        ),
    )


def _label(keys: list[str]) -> str:
    named = [key for key in dict.fromkeys(keys) if key]
    return ", ".join(named[:3]) + (f" and {len(named) - 3} more" if len(named) > 3 else "")


_ARROWS = {Road.BINDING: "-->", Road.DEAD_LETTER: "-.->", Road.UNROUTABLE: "-.->"}
COLOURS = {Road.BINDING: "#44546a", Road.DEAD_LETTER: "#c0392b", Road.UNROUTABLE: "#b7791f"}


def mermaid(graph: Graph) -> str:
    """The graph as a mermaid flowchart, which code hosts draw in Markdown."""
    return "\n".join(_mermaid_lines(graph)) + "\n"


def _mermaid_lines(graph: Graph) -> Iterator[str]:
    ids = {node: f"{node.kind[0]}{index}" for index, node in enumerate(graph.nodes)}
    yield "flowchart LR"
    for node in graph.nodes:
        text = f'"{_quoted(node.name)}<br/><i>{_quoted(node.detail)}</i>"'
        shape = f"([{text}])" if node.kind == "exchange" else f"[({text})]"
        yield f"    {ids[node]}{shape}"
    for edge in graph.edges:
        words = [str(edge.road)] if edge.road is not Road.BINDING else []
        label = " ".join([*words, edge.label]).strip()
        shown = f'|"{_quoted(label)}"|' if label else ""
        yield f"    {ids[edge.source]} {_ARROWS[edge.road]}{shown} {ids[edge.target]}"
    for road in (Road.DEAD_LETTER, Road.UNROUTABLE):
        numbers = [str(index) for index, edge in enumerate(graph.edges) if edge.road is road]
        if numbers:
            yield f"    linkStyle {','.join(numbers)} stroke:{COLOURS[road]},color:{COLOURS[road]}"


def _quoted(text: str) -> str:
    """Text within a mermaid label, where quotes and markup are entities and line breaks end the line."""
    special = {'"': "#quot;", "<": "#lt;", ">": "#gt;", "#": "#35;", "&": "#amp;", "`": "#96;", "\n": " ", "\r": " "}
    return "".join(special.get(letter, letter) for letter in text)
