"""``bertflow.serve_encoder``: embeddings over HTTP."""
