"""A training run as a folder: begin, resume, finish, report."""
