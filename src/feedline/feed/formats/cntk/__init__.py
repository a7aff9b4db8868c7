"""The formats of CNTK: text (CTF), binary (CBF), HTK features and labels (MLF)."""
