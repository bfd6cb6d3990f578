"""`mindspore.log`: Python's logging."""

from __future__ import annotations

import logging

__all__ = ["critical", "debug", "error", "info", "warning"]

_LOGGER = logging.getLogger("mindspore")
critical, debug, error, info, warning = _LOGGER.critical, _LOGGER.debug, _LOGGER.error, _LOGGER.info, _LOGGER.warning
