"""`ratchet setup`: fetch and compile now what a first run would otherwise wait for."""

from __future__ import annotations


def setup() -> None:
    """Fetch the Kafka and Spark jars and compile the kernels. Needed once; needs the network."""
    from rich.console import Console

    from kafka_ratchet.app.local.jars import kafka_jars, spark_jars
    from kafka_ratchet.app.worker.compile import compile_kernels

    console = Console(stderr=True, highlight=False, soft_wrap=True)
    for name, fetch in (("Kafka", kafka_jars), ("Spark", spark_jars)):
        jars = fetch(console)
        size = sum(jar.stat().st_size for jar in jars) / 1e6
        console.print(f"{name}: {len(jars)} jars, {size:.0f} MB, verified, in {jars[0].parent}")
    console.print("Kernels: compiling (some 20 s, once)")
    with console.status("compiling"):  # shows nothing where the console is no terminal
        compile_kernels()
    console.print("Kernels: compiled")
