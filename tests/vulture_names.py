"""Names that others call or read, so that vulture does not take them for dead code; one list for each of the others."""
# ruff: noqa: B018, F821

# Users of the package, who import by the path that a guide or a shipped folder names.
_.BertflowEmbeddings  # docs/serving.md
_.Calibration  # bertflow/export/module.py, by the name in modules.json
_.LayerPooling
_.SentenceVectorizer  # docs/serving.md
_.crops  # docs/calibrators.md
_.matched
_.embed_with_ray  # docs/cluster.md
_.get_sentence_embedding_dimension  # docs/encoders.md
_.fit_siamese  # docs/finetune.md
_.brief  # benchmarks/standins_print.py: the table of README.md
_.UsearchSearch  # docs/search.md
_.mteb_model  # docs/evaluate.md

# Named in ``COMMANDS``.
(_.flow_defaults, _.report_place)

# Named in ``COLLECTIONS``, and called by Python itself.
(_.LanceCollection, _.PostgresCollection, _.QdrantCollection, _.__init_subclass__)

# pydantic: keys of schemas that are read by ``get``.
(_.pooling_mode, _.weights_above)

# LangChain.
(_.embed_documents, _.embed_query)

# Lightning: hooks, and what its loggers and loaders are asked for.
(_.configure_callbacks, _.configure_gradient_clipping, _.configure_optimizers, _.on_before_backward)
(_.on_before_batch_transfer, _.on_exception, _.on_fit_end, _.on_load_checkpoint, _.on_save_checkpoint, batch_idx)
(_.on_train_batch_end, _.on_train_batch_start, _.on_train_epoch_end, _.on_train_start, _.on_validation_batch_end)
(_.on_validation_end, _.sampler, _.setup, _.teardown, _.transfer_batch_to_device, _.val_dataloader, _.validation_step)

# Prometheus.
_.collect

# uvicorn and urllib.
(_.connection_lost, _.connection_made, _.disconnected, _.redirect_request, _.send_400_response, _.should_exit)

# PyTorch, NumPy, Python and IPython.
(_.__class__, _._repr_html_, _._repr_markdown_, _.setup_context, _.showwarning)

# onnxruntime, tokenizers and transformers.
(_.intra_op_num_threads, _.log_severity_level, _.model_input_names, _.padding_side, _.truncation_side, _.use_cache)

# scikit-learn.
(_._n_features_out, _.n_features_out_, _.input_tags, _.inverse_transform, _.n_features_in_, _.partial_fit)
_.preserves_dtype

# sentence-transformers and mteb.
(_.forward_kwargs, _.get_config_dict, _.get_embedding_dimension, _.max_seq_length)
_.do_lower_case  # bertflow/encoder/locating.py, a key of sentence_bert_config.json
(_.mteb_model_meta, _.on_model_ready, _.similarity_pairwise)

# JSON: fields of records that are read or written whole.
(_.embedding, _.intra_sentence, _.labels_sha256, _.mev_baseline, _.p_williams_holm, _.query_prompt, _.same_position)
_.same_segment

# Types that stand in annotations alone.
_.ErrorDetails

# Parameters that a caller passes by name or by place.
(_.category, _.context_kwargs, _.dataloader_idx, _.exception, _.filename, _.lineno, _.memo, _.signum, _.transport)

# torch.compile: weights are constants.
_.freezing

# tokenizers: the parts of a tokenizer.
(_.post_processor, _.pre_tokenizer)

# transformers: how a model attends.
_._attn_implementation

# Lightning: where an average of weights is kept.
_._device
