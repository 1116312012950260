"""The merging of arguments, policies and operator policies, compared with what a broker does."""

from __future__ import annotations

from typing import Any

import pika
import pika.exceptions
import pytest
from pika.adapters.blocking_connection import BlockingChannel

from broker_topology.effective import Effective, effective_queue
from broker_topology.topology import Policy, Queue, Topology
from broker_topology.versions import Version
from sandbox.processes import eventually
from tests.conftest import VirtualHost

QUORUM = {"x-queue-type": "quorum"}
CLASSIC = {"x-queue-type": "classic"}


class Bench:
    """One queue under policies, on the broker and as computed."""

    def __init__(self, vhost: VirtualHost, channel: BlockingChannel) -> None:
        self.vhost, self.channel = vhost, channel
        self.version = Version.parse(vhost.api("GET", "/overview").json()["rabbitmq_version"])

    def queue(
        self,
        arguments: dict[str, Any],
        policy: dict[str, Any] | None = None,
        operator_policy: dict[str, Any] | None = None,
    ) -> Effective:
        """Declare it, and compute it."""
        policies = {"policies": policy, "operator-policies": operator_policy}
        for kind, definition in policies.items():
            if definition:
                body = {"pattern": "^probe$", "definition": definition, "apply-to": "queues", "priority": 1}
                self.vhost.api("PUT", f"/{kind}/{{vhost}}/probe", body).raise_for_status()
        self.channel.queue_declare("probe", durable=True, arguments=arguments)
        queue = Queue(name="probe", arguments=arguments)
        values = {
            kind: (Policy(name="probe", pattern="^probe$", definition=definition, apply_to="queues"),)
            for kind, definition in policies.items()
            if definition
        }
        topology = Topology(
            vhost=self.vhost.name,
            queues=(queue,),
            policies=values.get("policies", ()),
            operator_policies=values.get("operator-policies", ()),
        )
        return effective_queue(topology, queue, self.version)

    def publish(self, count: int = 1) -> int:
        """Publish and return how many were refused."""
        refused = 0
        for _ in range(count):
            try:
                self.channel.basic_publish("", "probe", b"x", mandatory=True)
            except pika.exceptions.NackError:
                refused += 1
        return refused

    def returns_survived(self, most: int) -> int:
        """How often a message can be rejected with requeue before it is gone; at most ``most`` times."""
        self.publish()
        for survived in range(most):
            method, _, _ = self.get()
            if method is None:
                return survived - 1
            self.channel.basic_reject(method.delivery_tag, requeue=True)
        return most if self.get()[0] is not None else most - 1

    def get(self) -> Any:
        """Poll the queue for a while: a message that was returned is not at once ready again."""
        for _ in range(40):
            found = self.channel.basic_get("probe")
            if found[0] is not None:
                return found
            self.channel.connection.process_data_events(0.02)
        return found


@pytest.fixture
def bench(vhost: VirtualHost) -> Any:
    connection = pika.BlockingConnection(pika.URLParameters(vhost.url))
    channel = connection.channel()
    channel.confirm_delivery()
    yield Bench(vhost, channel)
    connection.close()


LIMITS = [
    (None, None, None),
    (3, None, None),
    (None, 3, None),
    (6, 3, None),
    (3, 6, None),
    (None, 6, 3),
    (2, 6, 4),
    (None, None, 3),
]


@pytest.mark.parametrize(("argument", "policy", "operator"), LIMITS)
def test_the_delivery_limit_is_the_smaller_one(
    bench: Bench, argument: int | None, policy: int | None, operator: int | None
) -> None:
    """A message survives exactly as many returns as the merged limit says (D3)."""
    effective = bench.queue(
        QUORUM | ({"x-delivery-limit": argument} if argument else {}),
        {"delivery-limit": policy} if policy else None,
        {"delivery-limit": operator} if operator else None,
    )
    limit = effective.delivery_limit
    assert bench.returns_survived(24) == (24 if limit is None else limit)


@pytest.mark.parametrize(("argument", "policy"), [(-1, None), (-1, 3), (5, -1)])
def test_a_negative_delivery_limit_is_no_limit_from_4_on(bench: Bench, argument: int, policy: int | None) -> None:
    """From 4.0 a negative limit yields to a positive one; on 3.x it drops at the first return (D3)."""
    if policy == -1 and bench.version.major < 4:
        answer = bench.vhost.api(
            "PUT", "/policies/{vhost}/p", {"pattern": "x", "definition": {"delivery-limit": -1}, "priority": 1}
        )
        assert answer.status_code == 400
        return
    effective = bench.queue(QUORUM | {"x-delivery-limit": argument}, {"delivery-limit": policy} if policy else None)
    limit = effective.delivery_limit
    assert bench.returns_survived(24) == (24 if limit is None else max(limit, 0))


OVERFLOWS = [
    (QUORUM, None, None),
    (QUORUM, "reject-publish", None),
    (QUORUM, None, "reject-publish"),
    (QUORUM, "reject-publish", "drop-head"),
    (QUORUM, "drop-head", "reject-publish"),
    (CLASSIC, None, None),
    (CLASSIC, "reject-publish", "drop-head"),
    (CLASSIC, "drop-head", "reject-publish"),
    (CLASSIC, None, "reject-publish"),
]


@pytest.mark.parametrize(("queue_type", "argument", "policy"), OVERFLOWS)
def test_overflow_is_the_policys_on_quorum_and_the_arguments_on_classic(
    bench: Bench, queue_type: dict[str, Any], argument: str | None, policy: str | None
) -> None:
    """Whether a full queue refuses or drops is as computed (D3)."""
    effective = bench.queue(
        queue_type | {"x-max-length": 2} | ({"x-overflow": argument} if argument else {}),
        {"overflow": policy} if policy else None,
    )
    refused = bench.publish(10)
    assert (refused > 0) == (effective.overflow == "reject-publish")


@pytest.mark.parametrize(("argument", "policy", "operator"), [(5, 2, None), (2, 5, None), (None, 5, 2), (None, 2, 5)])
@pytest.mark.parametrize("queue_type", [QUORUM, CLASSIC])
def test_the_length_is_the_smaller_one(
    bench: Bench, queue_type: dict[str, Any], argument: int | None, policy: int, operator: int | None
) -> None:
    """A queue holds as many messages as the merged limit says (D3)."""
    effective = bench.queue(
        queue_type | ({"x-max-length": argument} if argument else {}),
        {"max-length": policy},
        {"max-length": operator} if operator else None,
    )
    assert effective.max_length == 2
    bench.publish(10)

    eventually(lambda: bench.channel.queue_declare("probe", passive=True).method.message_count == 2, seconds=5)


@pytest.mark.parametrize("queue_type", [QUORUM, CLASSIC])
def test_the_dead_letter_exchange_of_the_argument_wins(bench: Bench, queue_type: dict[str, Any]) -> None:
    """Of two dead-letter exchanges and keys the argument's count, each by itself (D3)."""
    for name in ("by-argument", "by-policy"):
        bench.channel.queue_declare(name, durable=True, arguments=QUORUM)
    effective = bench.queue(
        queue_type | {"x-dead-letter-exchange": "", "x-dead-letter-routing-key": "by-argument"},
        {"dead-letter-exchange": "", "dead-letter-routing-key": "by-policy"},
    )
    assert effective.dead_letter_routing_key == "by-argument"
    bench.publish()
    method, _, _ = bench.get()
    bench.channel.basic_reject(method.delivery_tag, requeue=False)
    eventually(lambda: bench.channel.queue_declare("by-argument", passive=True).method.message_count == 1, seconds=10)
    assert bench.channel.queue_declare("by-policy", passive=True).method.message_count == 0


@pytest.mark.parametrize(("how", "comes_back"), [("rejected", True), ("returned too often", False)])
def test_a_cycle_of_dead_letters_without_a_reject_loses_the_message(bench: Bench, how: str, comes_back: bool) -> None:
    """In a retry loop, what is rejected comes back; what exceeds the limit is gone, as lint says (D3)."""
    loop = {"x-dead-letter-exchange": "", "x-dead-letter-routing-key": "wait", "x-delivery-limit": 1}
    back = {"x-dead-letter-exchange": "", "x-dead-letter-routing-key": "probe", "x-message-ttl": 200}
    bench.queue(QUORUM | loop)
    bench.channel.queue_declare("wait", durable=True, arguments=QUORUM | back)
    bench.publish()
    if how == "rejected":
        bench.channel.basic_reject(bench.get()[0].delivery_tag, requeue=False)
    else:
        for _ in range(2):
            bench.channel.basic_reject(bench.get()[0].delivery_tag, requeue=True)
    eventually(lambda: bench.channel.queue_declare("wait", passive=True).method.message_count == 1, seconds=5)
    eventually(lambda: bench.channel.queue_declare("wait", passive=True).method.message_count == 0, seconds=5)
    assert (bench.get()[0] is not None) == comes_back
