"""The metrics, by their names. Served at `/metrics`."""

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, generate_latest

REGISTRY = CollectorRegistry()

RESPONSES = Counter("antiphon_responses", "Responses that ended, by status.", ["status"], registry=REGISTRY)
RUNNING = Gauge("antiphon_responses_running", "Responses at work now.", registry=REGISTRY)
WAITING = Gauge("antiphon_responses_waiting", "Responses that wait for a place.", registry=REGISTRY)
REJECTED = Counter(
    "antiphon_responses_rejected", "Requests refused because all places were taken.", registry=REGISTRY
)
RECOVERED = Counter("antiphon_runs_recovered", "Runs taken over at start.", registry=REGISTRY)
STEPS = Counter(
    "antiphon_steps", "Steps that ended, by kind and state.", ["kind", "state"], registry=REGISTRY
)
STRUCK = Counter("antiphon_attempts_struck", "Torn model answers that were struck.", registry=REGISTRY)
COMMITS = Counter("antiphon_commits", "Commits of runs.", registry=REGISTRY)
COMMIT_GROUPS = Counter("antiphon_commit_groups", "Transactions that held them.", registry=REGISTRY)
COMMIT_SECONDS = Histogram(
    "antiphon_commit_seconds",
    "Time of one transaction, in seconds.",
    buckets=(0.0005, 0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.5, 2.0),
    registry=REGISTRY,
)
EVENTS = Counter("antiphon_events_published", "Events handed to readers and the log.", registry=REGISTRY)
READERS = Gauge("antiphon_stream_readers", "Open event streams.", registry=REGISTRY)
REQUESTS = Counter("antiphon_http_requests", "HTTP requests, by status.", ["status"], registry=REGISTRY)


def exposition() -> bytes:
    """All metrics in the text format of Prometheus."""
    return generate_latest(REGISTRY)
