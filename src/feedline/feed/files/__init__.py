"""Files of any format: listing, opening, writing, mapping and identifying them."""
