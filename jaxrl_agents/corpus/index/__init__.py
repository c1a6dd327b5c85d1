"""Search over chunks: BM25 and dense vectors, fused, stored in one folder."""
