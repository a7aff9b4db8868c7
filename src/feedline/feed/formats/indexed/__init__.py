"""Corpora whose files hold many sequences each, with an index that says where each of them is."""
