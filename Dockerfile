# One image for every part of Ratchet: the worker, the page, the Spark job and the command-line tools.
# The Debian release is part of the tag: Java 17 comes from its archive, and the next release has another Java.
FROM python:3.11-slim-bookworm

RUN apt-get update \
 && apt-get install --yes --no-install-recommends openjdk-17-jre-headless \
 && rm -rf /var/lib/apt/lists/*

# A user without rights, and the folders it may write: state and results are for its eyes only.
RUN groupadd --system --gid 10001 ratchet \
 && useradd --system --uid 10001 --gid ratchet --create-home --shell /usr/sbin/nologin ratchet \
 && install --directory --owner=ratchet --group=ratchet --mode=0700 \
      /var/lib/ratchet /var/lib/ratchet/state /var/lib/ratchet/results \
      /var/cache/ratchet /var/cache/ratchet/numba

WORKDIR /opt/ratchet
COPY requirements.lock ./
RUN pip install --no-cache-dir --require-hashes --requirement requirements.lock

# pyproject.toml: says which version this is.
COPY errors.py LICENSE pyproject.toml ./
COPY agents/ agents/
COPY kafka_ratchet.egg-info/ kafka_ratchet.egg-info/
COPY app/ app/
COPY docs/ docs/
COPY kafka_ratchet/ kafka_ratchet/
COPY producers/ producers/
COPY reader/ reader/
COPY rule/ rule/
COPY spark_sink/ spark_sink/
COPY tables/ tables/
COPY testing/ testing/
COPY topic_log/ topic_log/
COPY transport/ transport/
COPY verify/ verify/

# The user below may not write here, so each start would compile every module anew: a quarter of a second of a worker's.
RUN python -m compileall -q .

# RATCHET_CACHE and NUMBA_CACHE_DIR: what `setup` prepares below is found again by whatever runs in the container.
# No RATCHET_SINK__...: a variable beats the settings file, and makes a [sink] where the file has [sinks.NAME] alone.
ENV PYTHONPATH=/opt/ratchet \
    PYTHONUNBUFFERED=1 \
    NUMBA_CACHE_DIR=/var/cache/ratchet/numba \
    RATCHET_CACHE=/var/cache/ratchet \
    RATCHET_STATE_FOLDER=/var/lib/ratchet/state

USER ratchet
# The jars are resolved now, so that a container needs no network beyond its brokers.
RUN python -m kafka_ratchet setup

# No VOLUME: each container would leave anonymous volumes behind. State and results may be mounted there.
ENTRYPOINT ["python", "-m", "kafka_ratchet"]
CMD ["--help"]
