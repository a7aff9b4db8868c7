"""``feedline inspect --pictures`` of corpora other than of pictures: sequences as stills, on one page."""
