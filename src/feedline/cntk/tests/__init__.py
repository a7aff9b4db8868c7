"""`cntk.tests`: what notebooks import from the package of CNTK's own tests."""
