"""`cntk.tests`: names that notebooks import from CNTK's tests."""
