"""Statistics of all sequences of a corpus, in one pass: `statistics`.

Each chunk is summarised by itself, in threads, and the summaries are merged in the order of the chunks. So the same
corpus gives the same numbers for any number of threads, and for a pass that was interrupted and resumed.

`corpus_pass` reads, `stream_summary` has the summary of a stream: its moments (`column_moments`), a sample of its rows
(`row_sample`) and counts of its values (`value_counts`). `stream_statistics` is the result, and its file.
"""

from feedline.feed.statistics.corpus_pass import statistics
from feedline.feed.statistics.stream_statistics import CorpusStatistics, StreamStatistics

__all__ = ["CorpusStatistics", "StreamStatistics", "statistics"]
