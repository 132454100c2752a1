"""Program `python -m kafka_ratchet.spark_sink`, and the file for spark-submit."""

# Absolute, because spark-submit runs this file as a plain script.
from kafka_ratchet.spark_sink.cli import main

if __name__ == "__main__":
    raise SystemExit(main())
