"""``bertflow.fix``: evidence, then a decision, then advice."""
