"""What ``bertflow embed`` does: open the encoder, stream the text, fill the store, say what is there."""

import argparse
import time
from contextlib import ExitStack
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from bertflow.cli.embed_progress import counted, progress, say
from bertflow.data.corpus import stream_sentences
from bertflow.encoder.embedded import RAW_POOLING, embedded_encoder
from bertflow.encoder.pooling import parse_pooling
from bertflow.encoder.transformer import TransformerEncoder
from bertflow.errors import UsageError
from bertflow.progress import Advance
from bertflow.store.locks import place
from bertflow.store.store import EmbeddingStore
from bertflow.store.text import SpooledText, TextIndex

OF_ENCODER = ("max_length", "dtype", "device", "revision", "prompt")


def embed(options: argparse.Namespace) -> int:
    """Embed what the command line names; returns the exit code.

    Raises:
        UsageError: If there is no text, or an option cannot be used.
        DataError: If text cannot be read, or the folder holds a store of something else.
    """
    if not options.text:
        raise UsageError("Text is wanted, got none. Name files or hub:owner/name, or give --verify to check a store.")
    columns = options.columns.split(",") if options.columns else None
    begin = time.monotonic()
    with ExitStack() as stack:
        encoder = _open(options, columns)

        def begun(store: EmbeddingStore) -> Advance:
            return stack.enter_context(progress("embedding", store.n))

        try:
            store = EmbeddingStore.build_streamed(
                encoder,
                lambda: counted(stream_sentences(options.text, columns)),
                options.store,
                options.shards,
                options.storage,
                begun,
            )
        except KeyboardInterrupt:
            say(f"What is done is kept in {options.store}: run the same command again to go on.")
            raise
    _summarize(store, time.monotonic() - begin)
    return 0


def verify(options: argparse.Namespace) -> int:
    """Compare a store with its checksums; returns the exit code.

    Raises:
        UsageError: If text is given, which would not be used.
        DataError: If the store is not finished, or damaged.
    """
    if options.text:
        raise UsageError(f"--verify reads the store alone, but text is given ({options.text[0]}). Leave one out.")
    store = EmbeddingStore.open(options.store)
    store.verify()
    print(f"{options.store}: whole, {store.describe_rows()}")
    return 0


def _open(options: argparse.Namespace, columns: list[str] | None) -> TransformerEncoder:
    given = {name: value for name in OF_ENCODER if (value := getattr(options, name)) is not None}
    embedded = options.model is None
    model = embedded_encoder() if embedded else options.model
    encoder = TransformerEncoder(model, options.pooling or (RAW_POOLING if embedded else None), **given)
    if parse_pooling(encoder.describe()["pooling"]).counted:
        # Its counts are of the whole text, each distinct sentence once, so that is read before anything is embedded.
        with TemporaryDirectory() as folder:
            distinct = TextIndex.read(stream_sentences(options.text, columns), Path(folder))
            encoder.count_tokens(SpooledText(Path(folder)).rows(0, distinct.n) if distinct.n else [])
    return encoder


def _summarize(store: EmbeddingStore, seconds: float) -> None:
    if place()[0]:
        return
    recipe: dict[str, Any] = store.recipe
    print(f"store     {store.folder}: {store.describe_rows()}")
    print(f"text      {len(store.row_ids):,} sentences, {store.n:,} distinct")
    print(f"encoder   {recipe['encoder']}, {recipe['pooling']}")
    print(f"took      {seconds:.1f} s")
    print(f"\nnext: bertflow fit --store {store.folder} --calibrator whitening --output calibrator")
