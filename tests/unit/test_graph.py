"""Pictures of a topology."""

from __future__ import annotations

import contextlib
import json
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

from click.testing import CliRunner
from hypothesis import given, settings

from broker_topology.__main__ import main
from broker_topology.errors import TopologyError
from broker_topology.graph import make_graph, mermaid
from broker_topology.svg import svg
from broker_topology.topology import Exchange, Queue, Topology, parse_topology, read_topology
from tests.unit.definitions_files import FILES

DEFINITIONS = Path(__file__).parent.parent.parent / "definitions.json"


def test_mermaid_draws_the_roads_apart() -> None:
    """Bindings are solid; dead letters and unroutable messages are dotted and coloured (D3)."""
    text = mermaid(make_graph(read_topology(DEFINITIONS)))
    assert text.startswith("flowchart LR\n")
    assert '    e0 -->|"payments"| q3\n' in text
    assert '    q3 -.->|"dead letters"| e1\n' in text
    assert '    e0 -.->|"unroutable"| e2\n' in text
    assert "linkStyle 5,6,7 stroke:#c0392b" in text


def test_svg_has_every_object_and_every_road(tmp_path: Path) -> None:
    """The SVG is well-formed, within its frame, and no box lies on another (D3)."""
    file = tmp_path / "topology.svg"
    arguments = ["graph", str(DEFINITIONS), "--format", "svg", "-o", str(file)]
    assert CliRunner().invoke(main, arguments).exit_code == 0
    root = ElementTree.fromstring(file.read_text())
    titles = [title.text for title in root.iter("{http://www.w3.org/2000/svg}title")]
    assert "queue payments (quorum)" in titles
    assert "payments to dead-letters: dead letters" in titles
    assert "work to unroutable: unroutable" in titles
    boxes = [
        tuple(int(rect.attrib[key]) for key in ("x", "y", "width", "height"))
        for rect in root.iter("{http://www.w3.org/2000/svg}rect")
        if "x" in rect.attrib
    ]
    assert len(boxes) == 8
    width, height = int(root.attrib["width"]), int(root.attrib["height"])
    for x, y, box_width, box_height in boxes:
        assert 0 <= x <= width - box_width
        assert 0 <= y <= height - box_height
        others = [other for other in boxes if other != (x, y, box_width, box_height)]
        assert all(abs(x - other[0]) >= box_width or abs(y - other[1]) >= box_height for other in others)


@settings(deadline=None)
@given(FILES)
def test_any_topology_can_be_drawn(value: dict[str, Any]) -> None:
    """Names with markup, cycles and undeclared ends make well-formed pictures (D3)."""
    with contextlib.suppress(TopologyError):
        picture = make_graph(parse_topology(json.dumps(value)))
        ElementTree.fromstring(svg(picture, title="any"))
        assert mermaid(picture).startswith("flowchart LR\n")


def test_markup_in_names_stays_text() -> None:
    """A name cannot break out of its label (D3)."""
    name = '"><script>#`&'
    loop = {"x-dead-letter-exchange": "", "x-dead-letter-routing-key": name}
    topology = Topology(
        vhost="/", exchanges=(Exchange(name=name, type="topic"),), queues=(Queue(name=name, arguments=loop),)
    )
    picture = make_graph(topology)
    assert "<script>" not in svg(picture, title=name)
    assert "<script>" not in mermaid(picture)
    assert '"><' not in mermaid(picture)


def test_a_long_chain_of_queues_can_be_drawn() -> None:
    """Two thousand queues in a row need no recursion (D3)."""
    count = 2_000
    queues = tuple(
        Queue(
            name=f"q{number}",
            arguments={"x-dead-letter-exchange": "", "x-dead-letter-routing-key": f"q{number + 1}"},
        )
        for number in range(count)
    )
    picture = make_graph(Topology(vhost="/", queues=(*queues, Queue(name=f"q{count}"))))
    assert svg(picture, title="chain").count("<path d=") > count
