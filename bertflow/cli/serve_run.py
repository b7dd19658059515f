"""What ``bertflow serve`` does: check, start, and stop in peace."""

import argparse
import os
import signal
import socket
import sys
from functools import partial
from pathlib import Path
from types import FrameType

from bertflow.errors import DataError, UsageError
from bertflow.serve.model import ModelOptions
from bertflow.serve.protocol import Limits
from bertflow.serve.server import HOSTS, PATH, build_server


def serve(options: argparse.Namespace) -> int:
    """Serve until Ctrl-C or SIGTERM; the requests that were accepted are answered first.

    Raises:
        UsageError: If the address cannot be listened on.
        DataError: If the model cannot be opened, or a process of the server dies.
    """
    _require_address(options.host, options.port)
    folder = Path(options.model)
    name = options.name or (folder.resolve().name if folder.exists() else options.model)
    limits = Limits(options.max_texts, options.max_body, options.batch, options.waiting, options.timeout)
    model = ModelOptions(options.model, name, options.device, options.truncate, options.normalize)
    at = f"http://{'[::1]' if options.host == '::' else options.host}:{options.port}{PATH}"
    server = build_server(model, limits, partial(print, f"{name} is served at {at}. Ctrl-C stops it.", flush=True))
    _stop_in_peace()
    try:
        server.run(
            host=options.host,
            port=options.port,
            log_level="warning",
            generate_client_file=False,
            access_log=False,
        )
    except (RuntimeError, EOFError, ConnectionError) as error:
        # LitServe stops when its worker dies, and says so in its log.
        reason = str(error) or "a process died, for want of memory perhaps"
        raise DataError(f"The server stopped: {reason}. Its log above says more.") from None
    return 0


def _require_address(host: str, port: int) -> None:
    """Refuse an address here, where LitServe would leave without a word."""
    if host not in HOSTS or not 1024 <= port <= 65535:
        raise UsageError(
            f"A host among {', '.join(HOSTS)} and a port from 1024 to 65535 are wanted, got {host} and {port}."
        )
    with socket.socket(socket.AF_INET6 if host == "::" else socket.AF_INET) as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((host, port))
        except OSError as error:
            raise UsageError(f"Port {port} of {host} cannot be had: {error.strerror}. Choose another --port.") from None


def _stop_in_peace() -> None:
    """SIGTERM stops the server as Ctrl-C does; in the processes that are forked from here a signal just ends them."""
    main = os.getpid()

    def stop(number: int, frame: FrameType | None) -> None:
        if os.getpid() == main:
            raise KeyboardInterrupt
        sys.exit(0)

    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, stop)
