"""`ratchet setup`: fetch and compile now what a first run would otherwise wait for."""

from __future__ import annotations


def setup() -> None:
    """Fetch the Kafka and Spark jars, and compile the kernels. Needed once, with access to the network."""
    from concurrent.futures import ThreadPoolExecutor

    from rich.console import Console

    from kafka_ratchet.app.local.jars import kafka_jars, spark_jars
    from kafka_ratchet.app.worker.compile import compile_kernels
    from kafka_ratchet.transport.publishing.compile import compile_publishing

    console = Console(stderr=True, highlight=False, soft_wrap=True)
    console.print("Fetching the jars and compiling the kernels, once")
    # Side by side: fetching waits for the network, compiling for the processor. A terminal shows one bar at a time,
    # which is that of the longer list.
    with ThreadPoolExecutor(2) as beside:
        fetched = {
            "Kafka": beside.submit(kafka_jars, console),
            "Spark": beside.submit(spark_jars, Console(quiet=True)),
        }
        compile_kernels()
        compile_publishing()
    console.print("Kernels: compiled")
    for name, jars in ((name, each.result()) for name, each in fetched.items()):
        size = sum(jar.stat().st_size for jar in jars) / 1e6
        console.print(f"{name}: {len(jars)} jars, {size:.0f} MB, verified, in {jars[0].parent}")
