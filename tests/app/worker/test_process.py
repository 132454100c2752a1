from __future__ import annotations

import resource

from kafka_ratchet.app.worker import process


def test_a_worker_may_open_as_many_files_as_it_is_allowed_to() -> None:
    before = resource.getrlimit(resource.RLIMIT_NOFILE)
    try:
        resource.setrlimit(resource.RLIMIT_NOFILE, (512, before[1]))
        process.allow_many_files()
        soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
        assert hard == before[1]
        assert soft == (process.FILES_MOST if hard == resource.RLIM_INFINITY else min(hard, process.FILES_MOST))
        process.allow_many_files()
        assert resource.getrlimit(resource.RLIMIT_NOFILE) == (soft, hard)
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, before)
