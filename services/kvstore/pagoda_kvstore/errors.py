"""Errors of the kvstore. Every message says what, which value, which limit, what to do.

KvStoreError
├── InvalidBlockRequestError   a request that can never be served: wrong lengths, too many hashes
├── SegmentFormatError         a file that is no segment of this version; left alone
└── NvmeFolderInUseError       another process holds the folder
"""

from pathlib import Path

from pagoda_runtime.errors import RuntimeServiceError


class KvStoreError(RuntimeServiceError):
    """Root of the kvstore's errors."""


class InvalidBlockRequestError(KvStoreError):
    """A request that can never be served."""

    def __init__(self, field: str, value: float, limit: str) -> None:
        self.field, self.value, self.limit = field, value, limit
        super().__init__(f"{field} is {value:g}, must be {limit}")


class SegmentFormatError(KvStoreError):
    """A file that is no segment of this version. Never deleted, never written."""

    def __init__(self, path: Path, reason: str) -> None:
        self.path, self.reason = path, reason
        super().__init__(
            f"{path} is no usable segment ({reason}): left alone; remove it to free its space"
        )


class NvmeFolderInUseError(KvStoreError):
    """Another process holds the NVMe folder."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        super().__init__(
            f"{folder} is used by another kvstore: "
            "stop it, set PAGODA_KVSTORE_NVME_DIR to another folder, or raise "
            "PAGODA_KVSTORE_NVME_FOLDERS if this is a further replica"
        )
