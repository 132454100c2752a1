"""`ratchet setup`: fetch and compile now what a first run would otherwise wait for."""

from __future__ import annotations

from pathlib import Path


def setup() -> None:
    """Fetch the Kafka and Spark jars, compile the kernels, and start Spark once. Needs access to the network."""
    from concurrent.futures import ThreadPoolExecutor

    from rich.console import Console

    from kafka_ratchet.app.local.jars import kafka_jars, spark_jars
    from kafka_ratchet.app.local.spark_classes import write_classes
    from kafka_ratchet.app.worker.compile import compile_kernels
    from kafka_ratchet.transport.publishing.compile import compile_publishing

    console = Console(stderr=True, highlight=False, soft_wrap=True)
    console.print("Fetching the jars, compiling the kernels and starting Spark, once")

    def spark() -> tuple[list[Path], Path | None]:
        return spark_jars(Console(quiet=True)), write_classes()

    # Side by side: fetching waits for the network, compiling for the processor. A terminal shows one bar at a time,
    # which is that of the longer list.
    with ThreadPoolExecutor(2) as beside:
        fetched, started = beside.submit(kafka_jars, console), beside.submit(spark)
        compile_kernels()
        compile_publishing()
    console.print("Kernels: compiled")
    of_spark, classes = started.result()
    for name, jars in (("Kafka", fetched.result()), ("Spark", of_spark)):
        size = sum(jar.stat().st_size for jar in jars) / 1e6
        console.print(f"{name}: {len(jars)} jars, {size:.0f} MB, verified, in {jars[0].parent}")
    if classes is None:
        console.print("Spark: its classes could not be kept, so that starts take somewhat longer")
    else:
        console.print(f"Spark: classes for quicker starts, {classes.stat().st_size / 1e6:.0f} MB, in {classes}")
