"""Sets up metrics: a meter provider of our own for each service in a process, as for tracers.

Every process can say what it has counted, as families of Prometheus; the gateway collects them from all
replicas and answers for the whole cluster. With OTEL_METRICS_EXPORTER=otlp they go to a collector as well.
"""

from __future__ import annotations

import logging
import os
import threading
from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from opentelemetry.environment_variables import OTEL_METRICS_EXPORTER
from opentelemetry.exporter.otlp.proto.grpc.metric_exporter import OTLPMetricExporter
from opentelemetry.exporter.prometheus import PrometheusMetricReader
from opentelemetry.metrics import Meter
from opentelemetry.sdk.metrics import MeterProvider
from opentelemetry.sdk.metrics.export import MetricReader, PeriodicExportingMetricReader
from opentelemetry.sdk.resources import SERVICE_INSTANCE_ID, SERVICE_NAME
from prometheus_client import CollectorRegistry, Metric, generate_latest
from prometheus_client.registry import Collector

from cluster.telemetry.setup import quieten, service_resource

_log = logging.getLogger(__name__)

CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"
# In the labels of every series, so that those of several replicas stay apart.
_RESOURCE_LABELS = {SERVICE_NAME, SERVICE_INSTANCE_ID}


@dataclass(frozen=True, slots=True)
class Metrics:
    """meter: makes the instruments of one service's replica."""

    meter: Meter
    provider: MeterProvider
    registry: CollectorRegistry

    def families(self) -> list[Metric]:
        """What has been counted so far; plain objects, which may be sent to another process."""
        return list(self.registry.collect())


_lock = threading.Lock()
_running: dict[tuple[str, str], Metrics] = {}


def setup_metrics(service_name: str, *, replica: str = "") -> Metrics:
    """The metrics of a service's replica in this process; the same ones when called again."""
    with _lock:
        metrics = _running.get((service_name, replica))
        if metrics is None:
            metrics = _running[service_name, replica] = start_metrics(service_name, replica)
        return metrics


def start_metrics(service_name: str, replica: str = "") -> Metrics:
    """Metrics that nothing else in this process knows of."""
    registry = CollectorRegistry()
    prometheus = PrometheusMetricReader(
        scope_info_enabled=False,
        resource_attribute_filter=_RESOURCE_LABELS.__contains__,
        registry=registry,
    )
    provider = MeterProvider(
        [prometheus, *_otlp()],
        resource=service_resource(service_name, replica),
        shutdown_on_exit=False,
    )
    return Metrics(provider.get_meter(service_name), provider, registry)


def _otlp() -> list[MetricReader]:
    if "otlp" not in os.environ.get(OTEL_METRICS_EXPORTER, "").split(","):
        return []
    try:
        quieten()
        return [PeriodicExportingMetricReader(OTLPMetricExporter())]
    except Exception as error:  # the SDK raises bare ones for values that it cannot read
        _log.warning("no metrics over OTLP, check the OTEL_EXPORTER_OTLP_* variables: %s", error)
        return []


def exposition(processes: Iterable[Iterable[Metric]]) -> bytes:
    """Families of several processes as one text of Prometheus, each family once."""
    registry = CollectorRegistry()
    registry.register(_Merged(processes))
    return generate_latest(registry)


class _Merged(Collector):
    def __init__(self, processes: Iterable[Iterable[Metric]]) -> None:
        self._families: dict[str, Metric] = {}
        for families in processes:
            for family in families:
                known = self._families.get(family.name)
                if known is None:
                    known = Metric(family.name, family.documentation, family.type, family.unit)
                    self._families[family.name] = known
                known.samples.extend(family.samples)

    def collect(self) -> Iterator[Metric]:
        yield from self._families.values()
