"""Corpora made of other corpora.

`weights` are exact ratios, a `schedule` repeats a period of sources, and `stages` are runs of places with one schedule.
All three are pure arithmetic. `order` combines them with the orders of the parts, and `mixture` is the class that users
declare. `packed` makes rows of documents, in their own order, by their `document_costs`, and `lm_batches` turns rows
into minibatches. `tokenized` and `picture_tokens` make the tokens of texts and pictures.

`bucketed` makes batches of sequences of like length. `bucketed_order` cuts every window of another order into them, by
`bucket_boundaries`.

`windows` gives samples their neighbours in time.

`subset` has a part of a corpus, `filtered` chooses one by content, and `key_folds` divides sequences by their keys.
"""
