"""How far tasks that failed together are spread when they come back, against the same schedule without jitter.

A thousand tasks meet a dead service at once. The service's own ledger says when each of them called: for each retry,
the largest share of calls that came in one and the same second after the failure before. Without jitter it is 1.
"""

from __future__ import annotations

import argparse
import json
from collections import Counter, defaultdict

from sandbox.processes import eventually
from sandbox.road import private_road
from tasks import RetryPolicy

RETRIES = 4


def main() -> None:
    """Print one JSON object per retry, with its histogram."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--tasks", type=int, default=1000)
    tasks = parser.parse_args().tasks
    with private_road() as road:
        services = road.services
        services.answer("crm", status=503)
        for number in range(tasks):
            road.publisher.send_task("crm.sync_customer_record", (f"customer-{number}", {}))
        road.worker("--concurrency=4")
        every_call = tasks * (RETRIES + 1)
        eventually(lambda: len(services.calls("crm", accepted=False)) >= every_call, seconds=600, every=1)
        report(services.calls("crm", accepted=False))


def report(calls: list[dict[str, object]]) -> None:
    """The waits before each retry, in whole seconds."""
    moments: dict[object, list[float]] = defaultdict(list)
    for call in calls:
        moments[call["path"]].append(float(str(call["at"])))
    for retry in range(1, RETRIES + 1):
        waits = Counter(int(times[retry] - times[retry - 1]) for times in moments.values() if len(times) > retry)
        largest = max(waits.values()) / waits.total()
        print(
            json.dumps(
                {
                    "bench": "retries",
                    "figure": f"largest share of returns in one second, retry {retry}",
                    "value": round(largest, 3),
                    "unit": "share",
                    "rival": "no jitter",
                    "rival_value": 1.0,
                    "ratio": round(largest, 3),
                    "histogram": {f"{second} s": number for second, number in sorted(waits.items())},
                    "covers_seconds": RetryPolicy(max_retries=RETRIES).covers().total_seconds(),
                }
            ),
            flush=True,
        )


if __name__ == "__main__":
    main()
