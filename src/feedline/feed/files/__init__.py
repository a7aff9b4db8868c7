"""Files, whichever format they have: which there are, how they are opened, written, mapped and told apart."""
